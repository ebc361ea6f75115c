"""How two runs differ: profile, code, versions, hosts, result."""

from __future__ import annotations

import difflib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from disttui.runner.api.carrying import code_changes
from disttui.runner.api.following import replay
from disttui.runner.api.viewer import Viewer
from disttui.runner.formatting import amount, gibibytes, number
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.profile.effects import flat
from disttui.runner.protocol.regular import open_regular
from disttui.runner.runs.notes import CodeKept, Provenance, load_provenance
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.state import RunState
from disttui.runner.untrusted.records import json_object

Section = Literal["profile", "command", "code", "versions", "facts", "result"]
SECTIONS: tuple[Section, ...] = ("profile", "command", "code", "versions", "facts", "result")
_MOST_LINES = 400
"""Most lines of the diff of two runs' code."""
_MOST_POINTS = 8192
"""Most points of a curve: more than any terminal shows."""


class Difference(NamedTuple):
    """A value that differs between two runs; None: unknown or absent."""

    section: Section
    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Comparison:
    """Two runs and their differences."""

    runs: tuple[str, str]
    differences: tuple[Difference, ...]
    changes: tuple[str, ...]
    """Unified diff of the sent code or of its uncommitted changes, as lines."""
    unknown: tuple[str, ...]
    """Runs without provenance: code, versions and facts are not compared."""

    def of(self, section: Section) -> tuple[Difference, ...]:
        """The differences of one section."""
        return tuple(one for one in self.differences if one.section == section)


def compare(viewer: Viewer, one: KnownRun, other: KnownRun, *, local: bool = False) -> Comparison:
    """Compare two known runs.

    Args:
        local: Take results from what is stored here, without asking hosts.
    """
    kept = [load_provenance(run.folder) for run in (one, other)]
    results = [_result(replay(viewer, run, local=local).state, run) for run in (one, other)]
    pairs: list[tuple[Section, Mapping[str, str], Mapping[str, str]]] = [
        ("profile", flat(one.profile), flat(other.profile)),
        ("result", results[0], results[1]),
    ]
    changes: list[str] = []
    before, after = kept
    if before and after:
        pairs += [
            ("command", {"command": " ".join(before.command)}, {"command": " ".join(after.command)}),
            ("code", dict(_code(before)), dict(_code(after))),
            ("versions", dict(_versions(before)), dict(_versions(after))),
            ("facts", dict(_facts(before)), dict(_facts(after))),
        ]
        changes = _changes(one, other, before.code, after.code)
    found = [
        Difference(section, key, first.get(key), second.get(key))
        for section, first, second in pairs
        for key in dict.fromkeys((*first, *second))
        if first.get(key) != second.get(key)
    ]
    found.sort(key=lambda difference: SECTIONS.index(difference.section))
    unknown = tuple(run.run for run, known in zip((one, other), kept, strict=True) if known is None)
    return Comparison((one.run, other.run), tuple(found), tuple(changes), unknown)


class MetricCurve(NamedTuple):
    """A metric of rank 0 over all attempts of a run; of steps trained twice, the last."""

    steps: Sequence[float]
    times: Sequence[float]
    """Seconds since the run began."""
    values: Sequence[float]

    def at(self, step: float) -> float | None:
        """The value of the last step up to this one."""
        place = bisect_right(self.steps, step)
        return self.values[place - 1] if place else None


def curve_of(run: KnownRun, metric: str = "loss") -> MetricCurve:
    """The curve of a metric from local records, thinned out to at most _MOST_POINTS."""
    points: list[tuple[float, float, float]] = []
    every, count = 1, 0
    for path in sorted(
        (run.folder / "0").glob("attempt-*/rank-0.metrics.jsonl"), key=lambda path: _attempt(path.parent)
    ):
        first = True
        with suppress(OSError), open_regular(path) as file:
            for line in file:
                record = json_object(line) or {}
                step, t, value = (number(record.get(name)) for name in ("step", "t", metric))
                if step is None or t is None or value is None:
                    continue
                resumed, first = first, False
                if points and (step < points[-1][0] or resumed):  # or rolled back, or counted again from 0
                    del points[bisect_left(points, (step,)) :]
                if (count := count + 1) % every == 0:
                    points.append((step, t, value))
                if len(points) > _MOST_POINTS:
                    points, every = points[::2], every * 2
    began = number(run.summary().get("began")) or run.started
    steps, times, values = zip(*points, strict=True) if points else ((), (), ())
    return MetricCurve(steps, [t - began for t in times], values)


def _attempt(folder: Path) -> int:
    name = folder.name.rpartition("-")[2]
    return int(name) if name.isdecimal() else 0


def _code(kept: Provenance) -> Iterator[tuple[str, str]]:
    if kept.library:
        yield "library", f"{kept.library} {kept.library_commit}".rstrip()
    if code := kept.code:
        yield "folder", f"{code.where}:{code.folder}"
        yield "commit", code.commit or "not in a git repository"
        if code.branch:
            yield "branch", code.branch
        if code.tree:
            yield "tree", code.tree[:12]
        yield (
            "uncommitted",
            f"{amount(_count(code.diff), 'changed line')}{' and more' if code.cut else ''}" if code.diff else "none",
        )
        if code.untracked:
            yield "untracked", " ".join(code.untracked)
    for host in kept.hosts:
        if host.facts and (found := host.facts.code):
            yield f"{host.name}: script", found.script or ""
            yield f"{host.name}: folder", found.folder or ""


def _count(diff: str) -> int:
    return sum(line[:1] in ("+", "-") and line[:3] not in ("+++", "---") for line in diff.splitlines())


def _versions(kept: Provenance) -> Iterator[tuple[str, str]]:
    yield "disttui", kept.version
    yield "viewer's Python", kept.python
    for host in kept.hosts:
        yield f"{host.name}: interpreter", host.interpreter
        yield f"{host.name}: Python", host.python
        yield f"{host.name}: torch", host.torch


def _facts(kept: Provenance) -> Iterator[tuple[str, str]]:
    """Yield facts that rarely change, unlike load, free memory and processes."""
    for host in kept.hosts:
        if host.facts:
            for name, value in _lasting(host.facts):
                yield f"{host.name}: {name}", value


def _lasting(facts: HostFacts) -> Iterator[tuple[str, str]]:
    yield "hostname", facts.hostname
    yield "user", facts.user
    yield "kernel", f"{facts.kernel} {facts.arch}"
    yield "CPU", f"{facts.cpu.available} of {facts.cpu.logical} {facts.cpu.model}"
    yield "memory", gibibytes(facts.memory.total)
    yield "GPUs", ", ".join(f"{gpu.name} {gpu.size}" for gpu in facts.gpus) or "none"
    if facts.gpus:
        yield "GPU driver", ", ".join(dict.fromkeys(gpu.driver for gpu in facts.gpus))
    for one in facts.interpreters:
        if one.torch:
            yield f"CUDA, NCCL of {one.path}", f"{one.cuda or 'none'}, {one.nccl or 'none'}"


def _result(state: RunState, run: KnownRun) -> dict[str, str]:
    end = state.result
    found = {"state": str(end.get("state")) if end else "end unknown", "attempts": str(len(state.attempts))}
    if end:
        found["code"] = str(end.get("code"))
        # The hosts' clocks may differ from this machine's, so that it counts only for what is not recorded.
        found["seconds"] = f"{state.elapsed or max(0.0, end.get('t', 0.0) - run.started):.0f}"
    for name, value in state.metrics.items():
        if name != "t" and isinstance(value, int | float):  # t is the time of the report
            found[name] = f"{value:.6g}"
    return found


def _changes(one: KnownRun, other: KnownRun, before: CodeKept | None, after: CodeKept | None) -> list[str]:
    """The diff of the sent code or, if it was not recorded, of the uncommitted changes, as at most 401 lines."""
    if before is None or after is None:
        return []
    found: list[str] = []
    sent = before.tree and after.tree
    if sent:
        with suppress(OSError, ValueError):
            found = list(islice(code_changes(one, other), _MOST_LINES + 1))
    elif before.diff != after.diff:
        names = ("uncommitted changes before", "uncommitted changes after")
        found = list(difflib.unified_diff(before.diff.splitlines(), after.diff.splitlines(), *names, lineterm="", n=1))
    more = len(found) - _MOST_LINES
    how_many = "" if sent else f"{more:,} "  # the comparison of sent code stops here, so the number is unknown
    return [*found[:_MOST_LINES], *([f"… and {how_many}more lines"] if more > 0 else [])]
