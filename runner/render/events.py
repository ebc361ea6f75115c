"""The text for each event of a run, wherever it is shown."""

from __future__ import annotations

from typing import NamedTuple

from disttui.runner.diagnose.doubts import straggler_sentence
from disttui.runner.protocol.events import Event, Unhandled
from disttui.runner.render.status import stall_words, stopped_by_user, ungrouped_words
from disttui.runner.render.story import attempt_words, death_words, first_line
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean

LEADERS = frozenset({"attempt", "failed", "step", "join", "verdict", "stopping"})
"""Kinds that every host reports, and that count from the leader only."""
_REASONS = {"failure": "another rank failed", "user": "asked to stop", "restart": "a new attempt follows"}


class Described(NamedTuple):
    """An event in words."""

    look: str
    """What it means: ok, waiting, running, warning, slow, stopping, stopped, failed, lost, not seen."""
    text: str


def describe(state: RunState, node: int, event: Event) -> Described | None:
    """An event of node `node`, which `state` already includes, in words; None if it need not be shown."""
    if node != 0 and event["e"] in LEADERS:
        return None
    found = _described(state, node, event)
    return found and Described(found[0], clean(found[1]))


def _described(state: RunState, node: int, event: Event) -> tuple[str, str] | None:  # noqa: C901, PLR0911, PLR0912 one case for each kind
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
            words = {"seen": "is seen again", "lost": "is lost"}.get(seen, f"is not seen by {_name(state, node)}")
            return ("running" if seen == "seen" else seen), f"{_name(state, event['node'])} {words}"
        case "death":
            if event.get("code") == -15:  # mostly asked by the launcher or disttui, after the failure of another rank
                return "stopped", f"rank {event.get('rank')} ended with the attempt"
            said = event.get("said", "").strip().split("\n")[0][:200]
            words = f"rank {event.get('rank')} {death_words(event)}" + (f": {said}" if said else "")
            return ("stopped" if stopped_by_user(state) else "failed"), words
        case "error":
            words = f"rank {event.get('rank')} raised {event.get('type')}: {first_line(event.get('message') or '')}"
            return ("stopped" if stopped_by_user(state) else "failed"), words
        case "stopping":
            reason = event.get("reason", "")
            return "stopping", f"stopping: {_REASONS.get(reason, reason)}{', at once' if event.get('now') else ''}"
        case "stall":
            return ("running" if event.get("over") else "warning"), stall_words(event)
        case "straggler":
            words = straggler_sentence(event, state.host_of(event["rank"]))
            return ("running" if event.get("over") else "slow"), words
        case "alarm":
            over = event.get("over", False)
            return ("ok" if over else "warning"), f"{'over: ' if over else ''}{event['text'] or event.get('kind')}"
        case "note":
            return {"warning": "warning", "error": "failed"}.get(event.get("level", ""), "waiting"), event["text"]
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


def _name(state: RunState, node: int) -> str:
    return state.hosts[node].name if 0 <= node < len(state.hosts) else f"host {node}"
