"""Finds signs of trouble in a run without errors, such as a loss that is not finite or silent ranks. Pure."""

from __future__ import annotations

from statistics import median

from disttui.runner.diagnose.hang import rank_words
from disttui.runner.formatting import number
from disttui.runner.protocol.events import Straggler
from disttui.runner.protocol.metrics import NOT_FINITE, is_silent
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean


def doubts(state: RunState) -> list[str]:
    """The doubts as clauses: `the loss is nan since step 41`, `no step for 24 s (longest pause before: 1 s)`."""
    return [*_loss(state), *silence(state), *_apart(state)]


def _loss(state: RunState) -> list[str]:
    losses = [(rank, series.latest["loss"]) for _, rank, series in state.ranks() if "loss" in series.latest]
    bad = {rank: str(loss) for rank, loss in losses if loss in NOT_FINITE}
    where = f" on {rank_words(list(bad))}" if len(bad) < len(losses) else ""
    steps = [at for _, rank, one in state.ranks() if rank in bad and (at := one.not_finite_since) is not None]
    since = f" since step {min(steps):.0f}" if steps else ""
    return [f"the loss is {' and '.join(sorted({*bad.values()}))}{where}{since}"] if bad else []


def silence(state: RunState) -> list[str]:
    """How long no rank has written a record; empty if any rank has. The newest telemetry gives each host's time."""
    if state.result is not None or state.hosts[0].story.stall is not None:
        return []  # a stall is reported separately
    silent: list[tuple[float, float]] = []
    for host, _, series in state.ranks():
        attempt = host.story.attempts.get(state.attempt)
        first, last = (number(record.get("t")) for record in (series.first, series.latest))
        if host.exit is not None or (attempt is not None and attempt.stopping):
            return []
        if host.telemetry is None or first is None or last is None:
            continue
        seconds = host.telemetry["t"] - last
        if not is_silent(seconds, series.pause, last - first):
            return []
        silent.append((seconds, series.pause))
    if not silent:
        return []
    return [f"no step for {min(silent)[0]:.0f} s (longest pause before: {max(pause for _, pause in silent):.3g} s)"]


def _apart(state: RunState) -> list[str]:
    """The first and the last of ranks that are more than 10 s of training apart, as when a model is not wrapped."""
    if state.result is not None:
        return []
    offsets = state.hosts[0].story.offsets
    found: dict[object, list[tuple[float, float, float, float, int]]] = {}
    for host, rank, series in state.ranks():
        attempt = host.story.attempts.get(state.attempt)
        t, step = (number(series.latest.get(name)) for name in ("t", "step"))
        if attempt is None or rank not in attempt.groups or t is None or step is None or not series.marks:
            continue
        begun, first = series.marks[0]
        if t > begun and step > first:
            pace, now = (step - first) / (t - begun), t - offsets.get(host.node, 0.0)
            # Compare only ranks with the same first step and epoch: others may count something else.
            alike = tuple(str(one) for one in (series.first.get("step"), series.latest.get("epoch")))
            found.setdefault(alike, []).append((step - pace * now, pace, now, step, rank))
    for ranks in found.values():
        newest = max(now for _, _, now, _, _ in ranks)
        # Extrapolate each rank to the time of the newest record, since ranks report at different times.
        places = sorted((base + pace * newest, pace, step, rank) for base, pace, _, step, rank in ranks)
        (behind, _, low, last), (ahead, pace, high, first_rank) = places[0], places[-1]
        # The limit is 10 s of training at the pace of the first rank.
        if ahead - behind > 10.0 * pace:
            where = f"rank {first_rank} is at step {high:.0f}, rank {last} at step {low:.0f}"
            return [f"{where}: they are not synchronized; check that the model is wrapped"]
    return []


SLOW = 1.5
"""A rank is slow if its steps take this many times the median of the others."""


def straggler_sentence(event: Straggler, host: str) -> str:
    """The text for a `straggler` event."""
    own, others = event.get("median"), event.get("others")
    who = f"rank {event['rank']} on {clean(host)}"
    if event.get("over"):
        return f"{who} has caught up"
    times = f": {_time(own)} a step, the others {_time(others)}" if own and others else ""
    shows = "; ".join(clean(text) for text in event.get("shows", []))
    return f"{who} is slow{times}" + (f" ({shows})" if shows else "")


def step_times(state: RunState) -> dict[int, float]:
    """Rank → seconds of its last step, by the first suitable metric that all ranks have, or empty."""
    ranks = {rank: series.latest for _, rank, series in state.ranks()}
    for name in ("forward_time", "step_time"):
        found = {rank: value for rank, latest in ranks.items() if (value := number(latest.get(name))) and value > 0}
        if found and len(found) == len(ranks):
            return found
    return {}


def spread_sentence(state: RunState) -> str | None:
    """Median and spread of the times of the ranks' last steps; None if fewer than two are known.

    It does not call a rank slow, since any single step may be late: the leader reports ranks that stay slow.
    """
    times = step_times(state)
    if len(times) < 2:
        return None
    low, high = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    usual = _time(median(times.values()))
    if _time(times[low]) == _time(times[high]):
        return f"the last step took {usual} on every rank"
    return f"the last step took {usual} (rank {low} {_time(times[low])}, rank {high} {_time(times[high])})"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
