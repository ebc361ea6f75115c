"""The timeline of a run, with each event in a few words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from disttui.runner.protocol.events import Event
from disttui.runner.render.story import LEADERS, describe
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean

LIMIT = 2000
"""Maximum number of moments kept; the oldest are dropped first."""


@dataclass(frozen=True)
class Moment:
    """An event of a run, as the timeline shows it."""

    time: float
    """Unix time (s) by the leader's clock."""
    look: str
    """A word that `disttui.tui.theme.look` knows."""
    host: str
    """Where it happened; empty if it concerns the whole run, or its text names the host."""
    text: str
    count: int = 1
    """Number of similar consecutive moments that it represents."""
    rank: int | None = None
    ending: bool = False
    """Whether it is the end of a rank that was terminated with its attempt."""


def moment(event: Event, node: int, time: float, state: RunState) -> Moment | None:
    """The moment of an event of node `node`, which `state` already includes; None if the timeline omits it."""
    described = describe(state, node, event)
    if described is None or _BEGINS.fullmatch(described.text):
        return None
    host = "" if event["e"] in _OF_THE_RUN else clean(state.hosts[node].name)
    return Moment(
        time, described.look, host, described.text[:400],
        rank=_rank(event), ending=event["e"] == "death" and event.get("code") == -15,
    )  # fmt: skip


def _rank(event: Event) -> int | None:
    match event["e"]:
        case "error" | "death" | "straggler":
            return event.get("rank")
        case "failed" | "verdict":
            cause = event.get("cause")
            return cause.get("rank") if cause else None
    return None


def add(moments: tuple[Moment, ...], new: Moment) -> tuple[Moment, ...]:
    """Insert a moment by its time; combine the ends of ranks of one host within 30 s into one moment."""
    at = len(moments)
    while at and moments[at - 1].time > new.time:
        at -= 1
    if new.ending and at and _together(before := moments[at - 1], new):
        both = replace(before, text="ranks ended with the attempt", count=before.count + 1)
        return (*moments[: at - 1], both, *moments[at:])
    return (*moments[:at], new, *moments[at:])[-LIMIT:]


def _together(one: Moment, other: Moment) -> bool:
    return one.ending and one.host == other.host and other.time - one.time < 30


_BEGINS = re.compile(r"attempt \d+ begins")
"""Texts that are omitted, because the `attempt` event contains the same in more detail."""
_OF_THE_RUN = LEADERS | {"host", "straggler"}
