"""One attempt as one host tells it, and what each kind of its events changes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Record = Mapping[str, Any]
"""One line of a JSON-lines file, or the content of a JSON file."""


def seconds(value: Any) -> float:
    """A moment or a span of time as a host tells it. Raises TypeError for what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("no number")
    return float(value)


@dataclass(frozen=True)
class Attempt:
    """One attempt as one host tells it."""

    number: int
    master: str = ""
    port: int = 0
    world_size: int = 0
    launched: float | None = None
    """When torchrun was given the word, unix time of the host."""
    ranks: Mapping[int, Record] = field(default_factory=dict)
    """Rank → its last `rank` event."""
    groups: Mapping[int, Record] = field(default_factory=dict)
    """Rank → its `group` event: the process group it really sees."""
    errors: tuple[Record, ...] = ()
    """`error` and `death` events."""
    finished: Mapping[int, float] = field(default_factory=dict)
    """Rank → when its script ended with 0, unix time of the host."""
    cause: Record | None = None
    """Why it failed, as the leader knows, where another attempt followed."""
    stopping: Record | None = None
    ungrouped: bool = False
    """Whether its ranks work, or have ended well, and none was seen in a process group."""


def reported(attempt: Attempt, report: Record) -> Attempt:
    """Take a rank's own report (docs/formats.md, "ranks.jsonl")."""
    if report.get("e") != "exit" or report.get("code") != 0:
        return attempt
    return replace(attempt, finished={**attempt.finished, int(report["rank"]): seconds(report["t"])})


def _begun(attempt: Attempt, event: Record) -> Attempt:
    return replace(attempt, master=event["master"], port=event["port"], world_size=event["world_size"])


def _launched(attempt: Attempt, event: Record) -> Attempt:
    return replace(attempt, launched=event["t"])


def _rank(attempt: Attempt, event: Record) -> Attempt:
    return replace(attempt, ranks={**attempt.ranks, event["rank"]: event})


def _group(attempt: Attempt, event: Record) -> Attempt:
    return replace(attempt, groups={**attempt.groups, event["rank"]: event})


def _failed(attempt: Attempt, event: Record) -> Attempt:
    return replace(attempt, errors=(*attempt.errors, event))


def _blamed(attempt: Attempt, event: Record) -> Attempt:
    return replace(attempt, cause=event["cause"])


def _stopping(attempt: Attempt, event: Record) -> Attempt:
    return replace(attempt, stopping=event)


def _ungrouped(attempt: Attempt, event: Record) -> Attempt:
    return replace(attempt, ungrouped=not event.get("over"))


FOLDS: Mapping[str, Callable[[Attempt, Record], Attempt]] = {
    "attempt": _begun,
    "launch": _launched,
    "rank": _rank,
    "group": _group,
    "error": _failed,
    "death": _failed,
    "failed": _blamed,
    "stopping": _stopping,
    "ungrouped": _ungrouped,
}
"""By the kind of the event."""
