"""The story of a run: its command, its hosts, its timeline, its end."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from runner.cli.render.live import headline
from runner.diagnose.cause import causes, find
from runner.diagnose.straggler import straggler_sentence
from runner.formatting import clock, duration
from runner.protocol.events import Event, Unhandled
from runner.render.status import stall_words, ungrouped_words
from runner.render.story import attempt_words, death_words, ending, first_line, root_words
from runner.runs.contents import EventLine
from runner.runs.hooks import end_summary
from runner.runs.registry import KnownRun
from runner.runs.replay import Replay
from runner.runs.state import RunState
from runner.text import clean, clean_lines


def render_run(run: KnownRun, found: Replay) -> list[str]:
    """The lines of `disttui show`."""
    lines = [headline(run, found.state)]
    if run.problem:
        lines += ["", f"✗ it could not be started: {clean_lines(run.problem)}"]
    if run.sandbox:
        lines.append("played in a sandbox, which lives only as long as its command")
    lines += ["", "versions", *_versions(run, found)]
    timeline = _timeline(found)
    if timeline:
        lines += ["", "timeline (the leader's clock)", *timeline]
    lines += ["", "profile as run", *_indented(yaml.safe_dump(dict(run.profile), sort_keys=False, allow_unicode=True))]
    if found.state.result is not None:
        lines += ["", *ending(found.state, found.state.elapsed, run.folder, {}, len(found.state.attempts))]
    return lines


def run_json(run: KnownRun, found: Replay) -> dict[str, object]:
    """The same as data."""
    return {
        **end_summary(run, found.state),
        "source": run.source,
        "profile": run.profile,
        "versions": {host.name: _version(found, node) for node, host in enumerate(run.hosts)},
        "timeline": [{**(line[-1]), "host": run.hosts[node].name} for node, line in found.events],
        "causes": [
            {"attempt": one.attempt, "words": attempt_words(found.state, one.attempt)} for one in causes(found.state)
        ],
        "problem": run.problem or None,
    }


def _versions(run: KnownRun, found: Replay) -> list[str]:
    width = max(len(host.name) for host in run.hosts)
    lines = []
    for node, host in enumerate(run.hosts):
        known = _version(found, node)
        words = [f"{name} {clean(str(value))}" for name, value in known.items() if value]
        lines.append(f"  {host.name.ljust(width)}  {', '.join(words) or 'unknown'}")
    return lines


def _version(found: Replay, node: int) -> dict[str, object]:
    spec = found.files.get((node, "spec.json"), {})
    lines = (line.event for at, line in found.events if at == node and isinstance(line, EventLine))
    up: Mapping[str, object] = next((event for event in lines if event["e"] == "supervisor"), {})
    ready = [content for (at, name), content in found.files.items() if at == node and name.endswith("launcher.ready")]
    return {
        "disttui": spec.get("version"),
        "torch": ready[-1].get("torch") if ready else None,
        "interpreter": spec.get("python"),
        "node program on Python": up.get("python"),
        "hostname": up.get("hostname"),
    }


def _timeline(found: Replay) -> list[str]:
    offsets = found.state.hosts[0].story.offsets if found.state.hosts else {}
    lines: list[str] = []
    begun: float | None = None
    for node, line in found.events:
        words = _event_words(found.state, node, line.event) if isinstance(line, EventLine) else None
        if words is None or not isinstance(line, EventLine):
            continue
        moment = line.event["t"] - offsets.get(node, 0.0)
        begun = moment if begun is None else begun
        name = found.state.hosts[node].name
        lines.append(f"  {clock(moment)}  +{duration(moment - begun):>7}  {name}: {clean(words)}")
    return lines


def _event_words(state: RunState, node: int, event: Event) -> str | None:  # noqa: C901, PLR0911, PLR0912 one case for each kind
    """The text for an event, None for an unimportant one."""
    match event["e"]:
        case "attempt":
            place = clean(f"{event['master']}:{event['port']}")
            words = f"attempt {event['attempt']}: all have joined, world size {event['world_size']}, master {place}"
            return words if node == 0 else None
        case "launch":
            return f"attempt {event['attempt']}: launcher started"
        case "step":
            return f"attempt {event['attempt']}: first metric seen"
        case "error":
            message = first_line(event.get("message") or "")
            return f"rank {event.get('rank')} raised {clean(str(event.get('type')))}: {message}"
        case "failed":
            return f"attempt {event['attempt']} failed: {attempt_words(state, event['attempt'])}"
        case "death":
            # Mostly asked by torchrun or disttui, after the failure of another rank.
            words = "was asked to end (SIGTERM)" if event.get("code") == -15 else death_words(event)
            said = clean(event.get("said", "").strip().split("\n")[0])[:200]
            return f"rank {event.get('rank')} {words}" + (f": {said}" if said else "")
        case "host":
            return f"{_name(state, event['node'])} is {clean(event['state'])}"
        case "stopping":
            return f"ends its ranks ({clean(str(event.get('reason')))}{', at once' if event.get('now') else ''})"
        case "note" | "alarm":
            return clean(event["text"])
        case "ungrouped":
            return ungrouped_words(event)
        case "stall":
            return stall_words(event)
        case "straggler":
            return straggler_sentence(event, state.host_of(event["rank"]))
        case "verdict":
            cause = find(state) if event.get("cause") else None
            words = clean(str(event.get("state"))) + (f": {root_words(state, cause)}" if cause else "")
            return words if node == 0 else None
        case (
            "supervisor" | "listen" | "join" | "waiting" | "dial" | "clock" | "rank" | "group" | "launcher" | "left"
        ):  # fmt: skip
            return None
    raise Unhandled(event)


def _name(state: RunState, node: int) -> str:
    return state.hosts[node].name if 0 <= node < len(state.hosts) else f"host {node}"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in clean_lines(text).split("\n") if line.strip()]
