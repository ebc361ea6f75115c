"""The content of a run's files: each record is decoded to its type once, on arrival."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import islice
from typing import NamedTuple, cast, get_args, get_type_hints

from disttui.runner.formatting import number
from disttui.runner.protocol.events import Event, Report
from disttui.runner.protocol.files import Exit, Stacks
from disttui.runner.protocol.limits import MOST_GPUS, MOST_METRICS, MOST_RANKS
from disttui.runner.protocol.metrics import Metrics
from disttui.runner.protocol.telemetry import Telemetry
from disttui.runner.untrusted.decode import MalformedRecordError, decode
from disttui.runner.untrusted.records import whole

_RANK = re.compile(r"[0-9]{1,7}")
_NAME = 200
"""Longest metric name in characters."""
_MESSAGE, _TRACEBACK = 4096, 65536
"""Characters of an exception that the rank shim keeps."""


class EventLine(NamedTuple):
    """A line of events.jsonl."""

    event: Event


class NewerEvent(NamedTuple):
    """A line of events.jsonl whose kind only a newer version knows."""

    t: float
    record: Mapping[str, object]


class TelemetryLine(NamedTuple):
    """A line of telemetry.jsonl."""

    telemetry: Telemetry


class MetricsLine(NamedTuple):
    """A line of a rank's metrics file."""

    attempt: int
    rank: int
    metrics: Metrics


class ReportLine(NamedTuple):
    """A line of ranks.jsonl."""

    attempt: int
    report: Report


class ExitFile(NamedTuple):
    """The content of exit.json."""

    exit: Exit


class StacksFile(NamedTuple):
    """The content of stacks-<number>.json."""

    name: str
    number: int
    stacks: Stacks


class OtherFile(NamedTuple):
    """The content of any other file, or a malformed record of ranks.jsonl."""

    name: str
    record: Mapping[str, object]


class Growth(NamedTuple):
    """A line of growth.jsonl: the sizes of the ranks' logs at one time."""

    t: float
    sizes: Mapping[int, int]


def growth_of(record: Mapping[str, object]) -> Growth | None:
    """A record of growth.jsonl; None if it is malformed."""
    t, sizes = number(record.get("t")), record.get("sizes")
    if t is None or not isinstance(sizes, Mapping):
        return None
    known = ((rank, whole(size)) for rank, size in sizes.items() if _RANK.fullmatch(rank))
    return Growth(t, {int(rank): size for rank, size in known if size is not None})


Content = EventLine | NewerEvent | TelemetryLine | MetricsLine | ReportLine | ExitFile | StacksFile | OtherFile


def read_content(file: str, record: Mapping[str, object]) -> Content:
    """Decode a record of a host's file, by the file's name. Raises MalformedRecordError."""
    place = metrics_place(file)
    if place is not None:
        return MetricsLine(*place, _few(record))
    if file == "events.jsonl":
        return _event(record)
    if file == "telemetry.jsonl":
        return TelemetryLine(_bounded(decode(Telemetry, record)))
    if file == "exit.json":
        return ExitFile(decode(Exit, _shortened(record)))
    attempt, _, base = file.partition("/")
    if base == "ranks.jsonl" and attempt.removeprefix("attempt-").isdecimal():
        try:
            return ReportLine(int(attempt.removeprefix("attempt-")), decode(Report, record))
        except MalformedRecordError:
            return OtherFile(file, record)  # a script's own
    if file.startswith("stacks-"):
        digits = file.removeprefix("stacks-").removesuffix(".json")
        return StacksFile(file, int(digits) if digits.isdecimal() else 0, decode(Stacks, record))
    return OtherFile(file, record)


@lru_cache(4096)
def metrics_place(file: str) -> tuple[int, int] | None:
    """(attempt, rank) from a metrics file's name, None for other files."""
    attempt, _, base = file.partition("/")
    if not (attempt.startswith("attempt-") and base.startswith("rank-") and base.endswith(".metrics.jsonl")):
        return None
    try:
        return int(attempt[8:]), int(base[5:-14])
    except ValueError:
        return None


def _few(metrics: Metrics) -> Metrics:
    """The metrics, reduced to as many names as are kept per rank and without overlong ones.

    Values keep their types: the job of `check --train` writes lists.
    """
    if len(metrics) > MOST_METRICS or any(len(name) > _NAME for name in metrics):
        return dict(islice(((name, value) for name, value in metrics.items() if len(name) <= _NAME), MOST_METRICS))
    return metrics


def _bounded(telemetry: Telemetry) -> Telemetry:
    """The telemetry without GPUs and ranks that no host can have: all of them are drawn."""
    gpus, ranks = telemetry.get("gpus", []), telemetry.get("ranks", {})
    kept = [gpu for gpu in gpus if 0 <= gpu["index"] < MOST_GPUS][:MOST_GPUS]
    if len(kept) < len(gpus):
        telemetry = {**telemetry, "gpus": kept}
    if len(ranks) > MOST_RANKS:
        telemetry = {**telemetry, "ranks": dict(islice(ranks.items(), MOST_RANKS))}
    return telemetry


def _event(record: Mapping[str, object]) -> EventLine | NewerEvent:
    kind = _kinds().get(str(record.get("e")))
    if kind is not None:
        return EventLine(cast("Event", decode(kind, _shortened(record))))
    t = record.get("t", 0.0)
    if isinstance(t, bool) or not isinstance(t, int | float):
        raise MalformedRecordError("t")
    return NewerEvent(t, record)


def _shortened(record: Mapping[str, object]) -> Mapping[str, object]:
    """The record with texts no longer than the node program makes them: expressions search what ranks report."""
    found: dict[str, object] = {}
    for name, value in record.items():
        if isinstance(value, str):
            found[name] = value[-_TRACEBACK:] if name == "traceback" else value[:_MESSAGE]
        else:
            found[name] = _shortened(value) if name == "cause" and isinstance(value, dict) else value
    return found


@cache
def _kinds() -> Mapping[str, type]:
    return {get_args(get_type_hints(kind)["e"])[0]: kind for kind in get_args(Event)}
