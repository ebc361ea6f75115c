"""One attempt as one host reports it, and what each kind of event changes in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from runner.protocol import events
from runner.protocol.cause import Cause
from runner.protocol.reports import Report

Event = (
    events.AttemptBegins | events.LaunchBegins | events.RankBegins | events.Group | events.Error | events.Death
    | events.Failed | events.Stopping | events.Ungrouped
)  # fmt: skip
"""The kinds that change an attempt."""


@dataclass(frozen=True)
class Attempt:
    """One attempt as one host reports it."""

    number: int
    master: str = ""
    port: int = 0
    world_size: int = 0
    launched: float | None = None
    """When torchrun was started, unix time of the host."""
    ranks: Mapping[int, events.RankBegins] = field(default_factory=dict)
    """Rank → its last `rank` event."""
    groups: Mapping[int, events.Group] = field(default_factory=dict)
    """Rank → its `group` event: the process group it has joined."""
    errors: tuple[events.Error | events.Death, ...] = ()
    finished: Mapping[int, float] = field(default_factory=dict)
    """Rank → when its script ended with exit code 0, unix time of the host."""
    cause: Cause | None = None
    """The leader's cause of its failure, where another attempt followed."""
    stopping: events.Stopping | None = None
    ungrouped: bool = False
    """Whether its ranks work, or have ended with exit code 0, and none was seen in a process group."""


def reported(attempt: Attempt, report: Report) -> Attempt:
    """Apply a rank's own report (docs/formats.md, "ranks.jsonl")."""
    if report["e"] != "exit" or report.get("code") != 0:
        return attempt
    return replace(attempt, finished={**attempt.finished, report["rank"]: float(report["t"])})


def changed(attempt: Attempt, event: Event) -> Attempt:
    """Apply an event."""
    match event["e"]:
        case "attempt":
            return replace(attempt, master=event["master"], port=event["port"], world_size=event["world_size"])
        case "launch":
            return replace(attempt, launched=event["t"])
        case "rank":
            return replace(attempt, ranks={**attempt.ranks, event["rank"]: event})
        case "group":
            return replace(attempt, groups={**attempt.groups, event["rank"]: event})
        case "error" | "death":
            return replace(attempt, errors=(*attempt.errors, event))
        case "failed":
            return replace(attempt, cause=event["cause"])
        case "stopping":
            return replace(attempt, stopping=event)
        case "ungrouped":
            return replace(attempt, ungrouped=not event.get("over"))
    raise events.Unhandled(event)
