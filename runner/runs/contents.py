"""The content of a run's files: each record is decoded to its type once, on arrival."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import islice
from typing import NamedTuple, cast, get_args, get_type_hints

from disttui.runner.protocol.events import Event
from disttui.runner.protocol.files import Exit, Stacks
from disttui.runner.protocol.limits import MOST_GPUS, MOST_METRICS, MOST_RANKS
from disttui.runner.protocol.metrics import Metrics
from disttui.runner.protocol.reports import Report
from disttui.runner.protocol.telemetry import Telemetry
from disttui.runner.untrusted.decode import MalformedRecordError, decode


class EventLine(NamedTuple):
    """Of events.jsonl."""

    event: Event


class NewerEvent(NamedTuple):
    """Of events.jsonl: a kind that only a newer version knows."""

    t: float
    record: Mapping[str, object]


class TelemetryLine(NamedTuple):
    """Of telemetry.jsonl."""

    telemetry: Telemetry


class MetricsLine(NamedTuple):
    """Of a rank's metrics."""

    attempt: int
    rank: int
    metrics: Metrics


class ReportLine(NamedTuple):
    """Of ranks.jsonl."""

    attempt: int
    report: Report


class ExitFile(NamedTuple):
    """exit.json."""

    exit: Exit


class StacksFile(NamedTuple):
    """stacks-<number>.json."""

    name: str
    number: int
    stacks: Stacks


class OtherFile(NamedTuple):
    """Any other file, and malformed records of ranks.jsonl."""

    name: str
    record: Mapping[str, object]


Content = EventLine | NewerEvent | TelemetryLine | MetricsLine | ReportLine | ExitFile | StacksFile | OtherFile


def read_content(file: str, record: Mapping[str, object]) -> Content:
    """A record of a host's file, by the file's name. Raises MalformedRecordError."""
    place = metrics_place(file)
    if place is not None:
        if len(record) > MOST_METRICS:
            record = dict(islice(record.items(), MOST_METRICS))
        return MetricsLine(*place, record)
    if file == "events.jsonl":
        return _event(record)
    if file == "telemetry.jsonl":
        return TelemetryLine(_bounded(decode(Telemetry, record)))
    if file == "exit.json":
        return ExitFile(decode(Exit, record))
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
    """(attempt, rank) of a metrics file's name, None for other files."""
    attempt, _, base = file.partition("/")
    if not (attempt.startswith("attempt-") and base.startswith("rank-") and base.endswith(".metrics.jsonl")):
        return None
    try:
        return int(attempt[8:]), int(base[5:-14])
    except ValueError:
        return None


def _bounded(telemetry: Telemetry) -> Telemetry:
    """The same without GPUs and ranks that no host has: all of them are drawn."""
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
        return EventLine(cast("Event", decode(kind, record)))
    t = record.get("t", 0.0)
    if isinstance(t, bool) or not isinstance(t, int | float):
        raise MalformedRecordError("t")
    return NewerEvent(t, record)


@cache
def _kinds() -> Mapping[str, type]:
    return {get_args(get_type_hints(kind)["e"])[0]: kind for kind in get_args(Event)}
