"""Texts for the result of a stop."""

from __future__ import annotations

from runner.api.ending import StopResult
from runner.formatting import when
from runner.ids import short
from runner.render.story import held_words
from runner.text import clean


def stopped_lines(stopped: StopResult) -> list[str]:
    """What has ended on which host, what is left, and which hosts could not be reached."""
    run, ends = short(stopped.run), stopped.ends
    if stopped.before:
        return [_ended_before(stopped)]
    lines = []
    if left := [f"{host}: pid {pid}" for host, pid in stopped.left]:
        lines.append(f"could not be ended: {', '.join(left)}")
    lines += [f"{host}: {words}" for host, end in ends.items() for words in held_words(end["held"])]
    states = sorted({end["state"] for end in ends.values() if end["state"]})
    if ends:
        lines.append(f"{run} {'/'.join(states) or 'stopped'} on {', '.join(ends)}")
    if stopped.unseen:
        lines.append(f"not reached, so that nobody has seen it stopped there: {', '.join(stopped.unseen)}")
    return lines


def _ended_before(stopped: StopResult) -> str:
    run = short(stopped.run)
    if not stopped.ends:
        return f"{run} is not running: nothing to stop"
    end = next(iter(stopped.ends.values()))
    at = "" if end["t"] is None else f" at {when(end['t'])}"
    lost = f" ({clean(str(end['cause'].get('message')))})" if end["cause"].get("kind") == "supervisor lost" else ""
    return f"{run} has {end['state'] or 'ended'} already{at}{lost}: nothing is left to stop"
