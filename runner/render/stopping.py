"""Texts about stopping and removing runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from disttui.runner.api.ending import Old, StopResult
from disttui.runner.formatting import amount, duration, gibibytes, when
from disttui.runner.ids import short
from disttui.runner.protocol.events import LeftProcess
from disttui.runner.protocol.files import Exit
from disttui.runner.render.story import held_words, left_words
from disttui.runner.runs.registry import KnownRun
from disttui.runner.text import clean


def stopped_lines(stopped: StopResult) -> list[str]:
    """Lines on where a run ended, which processes remain, and which hosts have not confirmed the stop."""
    run, ends = short(stopped.run), stopped.ends
    lines = []
    if left := [f"{host}: {_process(ends[host], pid)}" for host, pid in stopped.left]:
        lines.append(f"could not be ended: {', '.join(left)}")
    lines += [f"{host}: {words}" for host, end in ends.items() for words in held_words(end.get("held", {}))]
    if stopped.before:
        lines = [_ended_before(stopped)]
    elif ends:
        state = (stopped.end or {}).get("state", "stopped")
        lines.append(f"{run} {state} on {', '.join(ends)}")
    if stopped.unconfirmed:
        lines.append(f"not confirmed by {', '.join(stopped.unconfirmed)}: repeat the stop when they are reachable")
    return lines


def stopped_data(stopped: StopResult) -> dict[str, object]:
    """The result of a stop as data for JSON."""
    return {
        "run": stopped.run,
        "error": None,
        "state": (stopped.end or {}).get("state"),
        "ended_before": stopped.before,
        "hosts": list(stopped.ends),
        "left": [
            {"host": host, "pid": pid, "process": _process(stopped.ends[host], pid)} for host, pid in stopped.left
        ],
        "unconfirmed": list(stopped.unconfirmed),
    }


def _process(end: Exit, pid: int) -> str:
    known = next((one for one in end.get("processes", []) if one.get("pid") == pid), LeftProcess(pid=pid))
    return clean(left_words(known))


def _ended_before(stopped: StopResult) -> str:
    run, end = short(stopped.run), stopped.end
    if end is None:
        return f"{run} is not running{f' on {names}' if (names := ', '.join(stopped.ends)) else ''}: nothing to stop"
    at = "" if end.get("t") is None else f" at {when(end['t'])}"
    cause = end.get("cause") or {}
    if cause.get("kind") == "start":
        return f"{run} did not start: nothing to stop"
    lost = f" ({clean(str(cause.get('message')))})" if cause.get("kind") == "supervisor lost" else ""
    state = end.get("state", "ended")
    return f"{run} {'was' if state == 'lost' else 'has'} already {state}{at}{lost}: nothing to stop"


def forgotten(run: KnownRun) -> str:
    """Where a run was removed, as one line."""
    if run.sandbox:
        return f"{run.run}: local files removed"
    return f"{short(run.run)}: removed on {', '.join(host.name for host in run.hosts)} and here"


def old_table(chosen: Sequence[Old]) -> str:
    """A table of the runs that would be removed, with their age and size."""
    now = time.time()
    width = max((len(short(old.run.run)) for old in chosen), default=0)
    lines = [
        f"  {short(old.run.run).ljust(width)}  ended {duration(now - old.ended)} ago  {gibibytes(old.size):>9}  "
        f"on {', '.join(host.name for host in old.run.hosts)}"
        for old in chosen
    ]
    total = gibibytes(sum(old.size for old in chosen))
    return "\n".join([*lines, f"{amount(len(chosen), 'run')}, {total}"])
