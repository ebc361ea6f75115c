"""The story of a run as a timeline: what an event means in a few words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.diagnose.straggler import straggler_sentence
from runner.render.status import ungrouped_words
from runner.render.story import attempt_words, end_words
from runner.runs.state import RunState
from runner.text import clean

Record = Mapping[str, Any]
LIMIT = 2000
"""Moments kept; the first ones go first."""


@dataclass(frozen=True)
class Moment:
    """Something that happened."""

    time: float
    """Unix time by the leader's clock."""
    look: str
    """A word that `tui.theme.look` knows."""
    host: str
    text: str
    count: int = 1
    """How often it happened in a row."""
    rank: int | None = None
    ending: bool = False
    """A rank that only ends because the attempt does."""


def moment(event: Record, node: int, time: float, state: RunState) -> Moment | None:
    """What an event of node `node` means that `state` holds already, None for what a timeline can do without."""
    tell = _TELL.get(str(event.get("e")))
    if tell is None or (node != 0 and event.get("e") in _LEADERS):
        return None
    told = tell(event, state)
    if told is None:
        return None
    rank = event["cause"].get("rank") if isinstance(event.get("cause"), Mapping) else event.get("rank")
    return Moment(
        time, told[0], clean(state.hosts[node].name), clean(told[1])[:400],
        rank=rank if isinstance(rank, int) else None, ending=event.get("e") == "death" and told[0] == "stopped",
    )  # fmt: skip


def add(moments: tuple[Moment, ...], new: Moment) -> tuple[Moment, ...]:
    """Put a moment in its place; ranks of one host that end together are one."""
    at = len(moments)
    while at and moments[at - 1].time > new.time:
        at -= 1
    if new.ending and at and _together(before := moments[at - 1], new):
        return (*moments[: at - 1], replace(before, count=before.count + 1), *moments[at:])
    return (*moments[:at], new, *moments[at:])[-LIMIT:]


def _together(one: Moment, other: Moment) -> bool:
    return one.ending and one.host == other.host and other.time - one.time < 30


def _name(state: RunState, node: Any) -> str:
    return state.hosts[node].name if isinstance(node, int) and 0 <= node < len(state.hosts) else "a host"


_BEGINS = re.compile(r"attempt \d+ begins")
"""The `attempt` event says the same with more words."""
Told = tuple[str, str] | None


def _attempt(event: Record, state: RunState) -> Told:
    where = f"{event.get('master')}:{event.get('port')}"
    return "waiting", f"attempt {event.get('attempt')} begins: {event.get('world_size')} ranks, master {where}"


def _host(event: Record, state: RunState) -> Told:
    seen = str(event.get("state"))
    words = {"seen": "is seen again", "lost": "is lost"}.get(seen, "is not seen")
    return ("running" if seen == "seen" else seen), f"{_name(state, event.get('node'))} {words}"


def _death(event: Record, state: RunState) -> Told:
    if event.get("code") == -15:
        return "stopped", "ranks ended with the attempt"
    return "failed", f"rank {event.get('rank')} {end_words(event)}"


def _error(event: Record, state: RunState) -> Told:
    first = str(event.get("message") or "").strip().split("\n")[0]
    return "failed", f"rank {event.get('rank')} raised {event.get('type')}: {first}"


def _failed(event: Record, state: RunState) -> Told:
    attempt = event.get("attempt")
    why = attempt_words(state, attempt) if isinstance(attempt, int) else "it is not known why"
    return "failed", f"attempt {attempt} failed: {why}"


def _stopping(event: Record, state: RunState) -> Told:
    reasons = {"failure": "another rank failed", "user": "asked to stop", "restart": "a new attempt follows"}
    reason = str(event.get("reason"))
    return "stopping", f"stopping: {reasons.get(reason, reason)}"


def _stall(event: Record, state: RunState) -> Told:
    if event.get("over"):
        return "running", "the ranks go on"
    silent = event.get("silent")
    count = len(silent) if isinstance(silent, Mapping) else 0
    return "warning", f"no progress: {count} rank{'' if count == 1 else 's'} silent"


def _straggler(event: Record, state: RunState) -> Told:
    told = straggler_sentence(event, "").replace(" on  ", " ")
    return ("running" if event.get("over") else "slow"), told


def _alarm(event: Record, state: RunState) -> Told:
    over = event.get("over") is True
    return ("ok" if over else "warning"), f"{'over: ' if over else ''}{event.get('text') or event.get('kind')}"


def _ungrouped(event: Record, state: RunState) -> Told:
    return ("ok" if event.get("over") else "warning"), ungrouped_words(event)


def _note(event: Record, state: RunState) -> Told:
    if _BEGINS.fullmatch(str(event.get("text"))):
        return None
    return {"warning": "warning", "error": "failed"}.get(str(event.get("level")), "stopped"), str(event.get("text"))


def _verdict(event: Record, state: RunState) -> Told:
    return str(event.get("state")), f"the run has {'been ' if event.get('state') == 'stopped' else ''}{_end(event)}"


def _end(event: Record) -> str:
    state = str(event.get("state"))
    return "been lost" if state == "lost" else state


_LEADERS = frozenset({"attempt", "failed", "step", "join", "verdict", "stopping"})
_TELL: Mapping[str, Callable[[Record, RunState], Told]] = {
    "join": lambda event, state: ("ok", f"{_name(state, event.get('node'))} has joined"),
    "attempt": _attempt,
    "failed": _failed,
    "step": lambda event, state: ("running", f"attempt {event.get('attempt')} makes steps"),
    "host": _host,
    "death": _death,
    "error": _error,
    "stopping": _stopping,
    "stall": _stall,
    "straggler": _straggler,
    "alarm": _alarm,
    "note": _note,
    "ungrouped": _ungrouped,
    "verdict": _verdict,
}
