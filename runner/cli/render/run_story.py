"""The story of a run: its command, its hosts, its timeline, its end; and two runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from itertools import takewhile

import yaml

from disttui.runner.api.comparing import SECTIONS, Comparison
from disttui.runner.api.waiting import ended
from disttui.runner.cli.render.live import headline
from disttui.runner.diagnose.cause import causes
from disttui.runner.formatting import clock, duration
from disttui.runner.ids import short
from disttui.runner.render.story import attempt_words, describe, ending, recorded_word
from disttui.runner.render.waiting import explain
from disttui.runner.runs.condition import is_lost
from disttui.runner.runs.contents import EventLine
from disttui.runner.runs.hooks import end_summary
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.replay import Replay
from disttui.runner.text import clean, clean_lines

_LONGEST = 120
"""Most characters of a value shown beside another."""
_AROUND = 20
"""Characters of a long word shown before those that differ."""


def render_run(run: KnownRun, found: Replay) -> list[str]:
    """The lines of `disttui runs show`."""
    lines = [headline(run, found.state)]
    known = run.summary()
    if found.state.result is None:
        lines[0] += f", {recorded_word(run, found.state)}"
    if known["state"] in ("stopping", "stopped") and known["note"]:
        lines.append(known["note"])
    if run.sandbox:
        lines.append("ran in a sandbox, which ended with its command")
    lines += ["", "versions", *_versions(run, found)]
    timeline = _timeline(found)
    if timeline:
        lines += ["", "timeline (the leader's clock)", *timeline]
    lines += ["", "profile as run", *_indented(yaml.safe_dump(dict(run.profile), sort_keys=False, allow_unicode=True))]
    if found.state.result is not None or is_lost(found.state):
        lines += ["", *ending(found.state, found.state.elapsed, run.folder, {}, len(found.state.attempts))]
    return lines


def run_json(run: KnownRun, found: Replay) -> dict[str, object]:
    """The same as data."""
    word = recorded_word(run, found.state)
    look = ended(run, found.state, run.folder)
    return {
        **end_summary(run, found.state),
        "state": word,
        "explain": explain(look) if word in ("failed", "lost") or run.problem else None,
        "source": run.source,
        "profile": run.profile,
        "versions": {host.name: _version(found, node) for node, host in enumerate(run.hosts)},
        "timeline": [{**(line[-1]), "host": run.hosts[node].name} for node, line in found.events],
        "causes": [
            {"attempt": one.attempt, "words": attempt_words(found.state, one.attempt)} for one in causes(found.state)
        ],
        "problem": run.problem or None,
        "unconfirmed": run.unconfirmed(run.ends()),
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
        described = describe(found.state, node, line.event) if isinstance(line, EventLine) else None
        if described is None or not isinstance(line, EventLine):
            continue
        moment = line.event["t"] - offsets.get(node, 0.0)
        begun = moment if begun is None else begun
        name = found.state.hosts[node].name
        lines.append(f"  {clock(moment)}  +{duration(moment - begun):>7}  {name}: {described.text}")
    return lines


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in clean_lines(text).split("\n") if line.strip()]


def render_comparison(found: Comparison) -> Iterator[str]:
    """The lines of `disttui runs diff`."""
    one, other = map(short, found.runs)
    yield f"{one} → {other}"
    same = []
    for section in SECTIONS:
        differences = found.of(section)
        if not differences:
            same.append(section)
            continue
        yield ""
        yield section
        width = min(40, max(len(one.key) for one in differences))
        for difference in differences:
            lead = f"{clean(difference.key):<{width}}"
            for change in _changes(difference.before, difference.after):
                yield f"  {lead}  {change}"
                lead = " " * width
    if found.changes:
        yield ""
        yield from (f"  {clean(line)}" for line in found.changes)
    for run in found.unknown:
        yield ""
        yield f"▲ {short(run)}: command, code, versions and hosts were not recorded, so they are not compared"
    known = [section for section in same if not found.unknown or section in ("profile", "result")]
    if known:
        yield ""
        yield f"the same: {', '.join(known)}"


def comparison_json(found: Comparison) -> dict[str, object]:
    """The same as data."""
    sections: dict[str, object] = {
        section: [{"key": one.key, "before": one.before, "after": one.after} for one in found.of(section)]
        for section in SECTIONS
    }
    return {"runs": list(found.runs), **sections, "changes": list(found.changes), "unknown": list(found.unknown)}


def _changes(before: str | None, after: str | None) -> Iterator[str]:
    """`before → after`; of long values only the words that differ, each behind its option: `--lr 3e-4 → 1e-3`."""
    if before is None or after is None or max(len(before), len(after)) <= _LONGEST:
        yield f"{_shown(before)} → {_shown(after)}"
        return
    one, other = clean(before).split(), clean(after).split()
    for kind, start, end, begin, until in SequenceMatcher(None, one, other).get_opcodes():
        if kind != "equal":
            option = f"{one[start - 1]} " if start and one[start - 1].startswith("-") else ""
            old, new = (" ".join(words) or None for words in (one[start:end], other[begin:until]))
            alike = takewhile(lambda pair: pair[0] == pair[1], zip(old or "", new or "", strict=False))
            skipped = max(0, sum(1 for _ in alike) - _AROUND)
            yield f"{option}{_shown(old, skipped)} → {_shown(new, skipped)}"


def _shown(value: str | None, skipped: int = 0) -> str:
    """A value from a character on, shortened."""
    if not value:
        return "nothing" if value is None else "''"
    text = clean(value)[skipped:]
    return ("…" if skipped else "") + (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
