"""A run as a story: what was asked for, who took part, what happened when, how it ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import yaml

from runner.cli.render.late import headline
from runner.diagnose.cause import causes, find
from runner.diagnose.straggler import straggler_sentence
from runner.formatting import clock, duration, number
from runner.render.status import ungrouped_words
from runner.render.story import attempt_words, end_words, ending, root_words
from runner.runs.history import KnownRun
from runner.runs.hooks import end_summary
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
        elapsed = (number(found.state.result.get("t")) or time.time()) - run.started
        lines += ["", *ending(found.state, elapsed, run.folder, {}, len(found.state.attempts))]
    return lines


def run_json(run: KnownRun, found: Replay) -> dict[str, Any]:
    """The same as data."""
    return {
        **end_summary(run, found.state),
        "source": run.source,
        "profile": run.profile,
        "versions": {host.name: _version(found, node) for node, host in enumerate(run.hosts)},
        "timeline": [{**event, "host": run.hosts[node].name} for node, event in found.events],
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


def _version(found: Replay, node: int) -> dict[str, Any]:
    spec = found.files.get((node, "spec.json"), {})
    up = next((event for at, event in found.events if at == node and event.get("e") == "supervisor"), {})
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
    for node, event in found.events:
        told = _told(found.state, node, event)
        moment = number(event.get("t"))
        if told is None or moment is None:
            continue
        moment -= offsets.get(node, 0.0)
        begun = moment if begun is None else begun
        name = found.state.hosts[node].name
        lines.append(f"  {clock(moment)}  +{duration(moment - begun):>7}  {name}: {clean(told)}")
    return lines


def _told(state: RunState, node: int, event: Mapping[str, Any]) -> str | None:
    """An event in words, None for those that say little."""
    kind = event.get("e")
    if kind == "attempt" and node == 0:
        place = clean(f"{event.get('master')}:{event.get('port')}")
        return f"attempt {event.get('attempt')}: all have joined, world size {event.get('world_size')}, master {place}"
    if kind == "launch":
        return f"attempt {event.get('attempt')}: torchrun told to go"
    if kind == "step":
        return f"attempt {event.get('attempt')}: first step made"
    if kind == "error":
        message = clean(str(event.get("message") or ""))[:120]
        return f"rank {event.get('rank')} raised {clean(str(event.get('type')))}: {message}"
    if kind == "failed":
        return f"attempt {event['attempt']} failed: {attempt_words(state, event['attempt'])}"
    if kind == "death":
        # Mostly asked by torchrun or disttui, after the failure of another.
        words = "was asked to end (SIGTERM)" if event.get("code") == -15 else end_words(event)
        said = clean(str(event.get("said") or "").strip().split("\n")[0])[:200]
        return f"rank {event.get('rank')} {words}" + (f": {said}" if said else "")
    if kind == "host":
        return f"{_name(state, event.get('node'))} is {clean(str(event.get('state')))}"
    if kind == "stopping":
        return f"ends its ranks ({clean(str(event.get('reason')))}{', at once' if event.get('now') else ''})"
    if kind in ("note", "alarm"):
        return clean(str(event.get("text") or ""))
    if kind == "ungrouped":
        return ungrouped_words(event)
    if kind == "stall":
        return "the ranks go on" if event.get("over") else "no rank makes progress any more"
    if kind == "straggler":
        return straggler_sentence(event, state.host_of(event.get("rank")))
    if kind == "verdict" and node == 0:
        cause = find(state) if event.get("cause") else None
        return clean(str(event.get("state"))) + (f": {root_words(state, cause)}" if cause else "")
    return None


def _name(state: RunState, node: Any) -> str:
    return state.hosts[node].name if isinstance(node, int) and 0 <= node < len(state.hosts) else f"host {node}"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in clean_lines(text).split("\n") if line.strip()]
