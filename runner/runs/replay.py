"""A run from its mirror alone: the same fold as live, with its events ordered by time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from disttui.runner.paths import PathError
from disttui.runner.protocol.metrics import Metrics
from disttui.runner.runs.contents import EventLine, ExitFile, MetricsLine, NewerEvent, metrics_place, read_content
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.state import RunState, fold
from disttui.runner.runs.store import HostStore, host_folder
from disttui.runner.runs.summary import cause_text
from disttui.runner.untrusted.records import LONGEST, Unfinished, records

_FOLDED = ("events.jsonl", "telemetry.jsonl", "exit.json")


class MetricRecord(NamedTuple):
    """One record of a rank's metrics file."""

    host: str
    attempt: int
    rank: int
    values: Metrics
    """`t` (unix time), usually `step`, and what the script reported."""

    def row(self) -> dict[str, object]:
        """The record as one flat row; a script's values named host, attempt or rank are left out."""
        ours = {"host": self.host, "attempt": self.attempt, "rank": self.rank}
        return {**ours, **self.values, **ours}


@dataclass(frozen=True)
class Replay:
    """A run as its mirror describes it."""

    state: RunState
    events: tuple[tuple[int, EventLine | NewerEvent], ...]
    """(node, event) of all hosts, ordered by the leader's clock as far as offsets are known."""
    metrics: tuple[MetricRecord, ...]
    """The records of every metrics file, by attempt and rank."""
    files: Mapping[tuple[int, str], Mapping[str, object]]
    """(node, name) → content of the small JSON files, including spec.json."""
    warnings: tuple[str, ...]
    """Lines that could not be read: file and offset."""

    def table(self) -> list[dict[str, object]]:
        """The metrics as rows with column names: `pandas.DataFrame(found.table())`."""
        return [record.row() for record in self.metrics]


def replay(run: KnownRun, folder: Path) -> Replay:
    """Fold the records of a mirror. Half-written and damaged lines are skipped with a warning."""
    state = run.begin()
    events: list[tuple[int, EventLine | NewerEvent]] = []
    metrics: list[MetricRecord] = []
    small: dict[tuple[int, str], Mapping[str, object]] = {}
    warnings: list[str] = []
    for node, host in enumerate(run.hosts):
        store = HostStore(host_folder(folder, node))
        for name in sorted(store.files()):
            place = metrics_place(name)
            if place is None and name not in _FOLDED and not name.endswith((".json", ".ready", "/ranks.jsonl")):
                continue
            for offset, record in _file(store, name):
                try:
                    if record is None:
                        raise ValueError
                    content = read_content(name, record)
                    state = fold(state, node, content)
                except ValueError:
                    warnings.append(f"{host.name}: {name} at byte {offset}: malformed record skipped")
                    continue
                if isinstance(content, MetricsLine):
                    metrics.append(MetricRecord(host.name, *content))
                elif isinstance(content, EventLine | NewerEvent):
                    events.append((node, content))
                elif not name.endswith(".jsonl"):
                    small[node, name] = record
    for node, end in run.ends().items():
        state = fold(state, node, ExitFile(end)) if state.hosts[node].exit is None else state
    seen = run.summary()
    state = replace(state, recorded=True, lost=cause_text(seen) if seen["state"] == "lost" else "")
    offsets = state.hosts[0].story.offsets
    events.sort(key=lambda item: _time(item[1]) - offsets.get(item[0], 0.0))
    metrics.sort(key=lambda item: (item.attempt, item.rank))
    return Replay(state, tuple(events), tuple(metrics), small, tuple(warnings))


def _file(store: HostStore, name: str) -> Iterator[tuple[int, Mapping[str, object] | None]]:
    unfinished = Unfinished()
    whole, begin = b"", 0
    try:
        for offset, data in store.read(name):
            if name.endswith(".jsonl"):
                # The unfinished last line of a growing file is not damaged.
                yield from unfinished.lines(offset, data)
            elif len(whole) + len(data) <= LONGEST:
                begin = begin if whole else offset
                whole += data
    except (OSError, PathError):
        return
    # A small JSON file has no newline at its end.
    if whole:
        yield from records(whole, begin)


def _time(line: EventLine | NewerEvent) -> float:
    return line.event["t"] if isinstance(line, EventLine) else line.t
