"""A run's timeline: each event in a few words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from disttui.runner.diagnose.doubts import straggler_sentence
from disttui.runner.protocol.events import Event, Unhandled
from disttui.runner.render.status import stall_words, stopped_by_user, ungrouped_words
from disttui.runner.render.story import attempt_words, death_words
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean

LIMIT = 2000
"""The most moments kept; the oldest are dropped first."""


@dataclass(frozen=True)
class Moment:
    """Something that happened."""

    time: float
    """Unix time by the leader's clock."""
    look: str
    """A word that `disttui.tui.theme.look` knows."""
    host: str
    """Where it happened; empty if it concerns the whole run, or its text names the host."""
    text: str
    count: int = 1
    """Number of similar consecutive moments that it represents."""
    rank: int | None = None
    ending: bool = False
    """Whether it is a rank that only ended with the attempt."""


def moment(event: Event, node: int, time: float, state: RunState) -> Moment | None:
    """The moment of an event of node `node`, which `state` already includes; None if a timeline need not show it."""
    described = None if node != 0 and event["e"] in _LEADERS else _described(event, state, _name(state, node))
    if described is None:
        return None
    host = "" if event["e"] in _OF_THE_RUN else clean(state.hosts[node].name)
    return Moment(
        time, described[0], host, clean(described[1])[:400],
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
    """Insert a moment by its time; ranks of one host that end together become one moment."""
    at = len(moments)
    while at and moments[at - 1].time > new.time:
        at -= 1
    if new.ending and at and _together(before := moments[at - 1], new):
        both = replace(before, text="ranks ended with the attempt", count=before.count + 1)
        return (*moments[: at - 1], both, *moments[at:])
    return (*moments[:at], new, *moments[at:])[-LIMIT:]


def _together(one: Moment, other: Moment) -> bool:
    return one.ending and one.host == other.host and other.time - one.time < 30


def _name(state: RunState, node: int) -> str:
    return state.hosts[node].name if 0 <= node < len(state.hosts) else "a host"


_BEGINS = re.compile(r"attempt \d+ begins")
"""The `attempt` event says the same in more detail."""
_REASONS = {"failure": "another rank failed", "user": "asked to stop", "restart": "a new attempt follows"}
_LEADERS = frozenset({"attempt", "failed", "step", "join", "verdict", "stopping"})
_OF_THE_RUN = _LEADERS | {"host"}


def _described(event: Event, state: RunState, by: str) -> tuple[str, str] | None:  # noqa: C901, PLR0911, PLR0912 one case for each kind
    match event["e"]:
        case "join":
            return "ok", f"{_name(state, event['node'])} has joined"
        case "attempt":
            where = f"{event['master']}:{event['port']}"
            return "waiting", f"attempt {event['attempt']} begins: {event['world_size']} ranks, master {where}"
        case "failed":
            return "failed", f"attempt {event['attempt']} failed: {attempt_words(state, event['attempt'])}"
        case "step":
            return "running", f"attempt {event['attempt']} makes steps"
        case "host":
            seen = event["state"]
            words = {"seen": "is seen again", "lost": "is lost"}.get(seen, f"is not seen by {by}")
            return ("running" if seen == "seen" else seen), f"{_name(state, event['node'])} {words}"
        case "death":
            if event.get("code") == -15:
                return "stopped", f"rank {event.get('rank')} ended with the attempt"
            return ("stopped" if stopped_by_user(state) else "failed"), f"rank {event.get('rank')} {death_words(event)}"
        case "error":
            first = (event.get("message") or "").strip().split("\n")[0]
            words = f"rank {event.get('rank')} raised {event.get('type')}: {first}"
            return ("stopped" if stopped_by_user(state) else "failed"), words
        case "stopping":
            reason = event.get("reason", "")
            return "stopping", f"stopping: {_REASONS.get(reason, reason)}"
        case "stall":
            return ("running" if event.get("over") else "warning"), stall_words(event)
        case "straggler":
            words = straggler_sentence(event, "").replace(" on  ", " ")
            return ("running" if event.get("over") else "slow"), words
        case "alarm":
            over = event.get("over", False)
            return ("ok" if over else "warning"), f"{'over: ' if over else ''}{event['text'] or event.get('kind')}"
        case "note":
            look = {"warning": "warning", "error": "failed"}.get(event.get("level", ""), "waiting")
            return None if _BEGINS.fullmatch(event["text"]) else (look, event["text"])
        case "ungrouped":
            return ("ok" if event.get("over") else "warning"), ungrouped_words(event)
        case "verdict":
            ended = str(event.get("state"))
            return ended, f"the run has {'been ' if ended in ('stopped', 'lost') else ''}{ended}"
        case (
            "supervisor" | "listen" | "waiting" | "dial" | "clock" | "launch" | "rank" | "group" | "launcher" | "left"
        ):  # fmt: skip
            return None
    raise Unhandled(event)
