"""Which ranks are slow, and what their hosts show. Pure."""

from __future__ import annotations

from statistics import median

from runner.formatting import number
from runner.protocol.events import Straggler
from runner.runs.state import RunState
from runner.text import clean

SLOW = 1.5
"""A rank is slow whose steps take this many times the median of the others."""


def straggler_sentence(event: Straggler, host: str) -> str:
    """A `straggler` event in words."""
    own, others = event.get("median"), event.get("others")
    who = f"rank {event['rank']} on {clean(host)}"
    if event.get("over"):
        return f"{who} has caught up"
    times = f": {_time(own)} a step, the others {_time(others)}" if own and others else ""
    shows = "; ".join(clean(text) for text in event.get("shows", []))
    return f"{who} is slow{times}" + (f" ({shows})" if shows else "")


def step_times(state: RunState) -> dict[int, float]:
    """Rank → seconds of its last step, by the best metric that all ranks have; empty where there is none."""
    ranks = {rank: series.latest for _, rank, series in state.ranks()}
    for name in ("forward_time", "step_time"):
        found = {rank: value for rank, latest in ranks.items() if (value := number(latest.get(name))) and value > 0}
        if found and len(found) == len(ranks):
            return found
    return {}


def spread_sentence(state: RunState) -> str | None:
    """Median and spread of the ranks' last steps; None where they are not known.

    It calls no rank slow, since any step may be late once: the leader says who is slow for long.
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
