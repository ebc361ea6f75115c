"""Finds out which of an attempt's failures was the first, and which only followed from another."""

from __future__ import annotations

import re
from typing import Sequence, TypedDict


class Cause(TypedDict, total=False):
    """Why an attempt or a run failed (docs/formats.md, "exit.json"). Unknown fields are absent."""

    node: int
    rank: int | None
    kind: str
    """exception, signal, exit, host lost, join, launch, supervisor lost, folder, slurm or watch."""
    type: str
    message: str
    code: int | None
    """Negative for a signal."""
    at: float
    """Unix time."""
    last: float | None
    """Unix time of the last sign of life of a lost host or supervisor."""


class FailureReport(Cause, total=False):
    """A cause as sent to the leader."""

    disk: str
    """The host's description of its full disk, if that is the reason."""


# Errors of ranks after another rank has died (gloo, NCCL, the store).
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset)( by)? ?(the )?(remote )?(peer)?|connection closed by peer|connection refused"
    r"|read error|broken pipe|timed out waiting|socket timeout|failed to recv, got 0 bytes"
    r"|remote process (has )?exited|nccl.{0,200}(remote|abort)|sendbytes failed|connectfullmesh failed|sigterm"
    r"|std::terminate: without an active exception|killed by signal: terminated",
    re.IGNORECASE,
)


def is_consequence(failure: Cause) -> bool:
    """Whether a failure looks like the consequence of another one."""
    if failure["kind"] in ("signal", "launch"):
        return bool(failure["code"] == -15)
    return failure["kind"] == "exception" and bool(
        _CONSEQUENCE.search(f"{failure.get('type')}: {failure.get('message')}")
    )


def root(failures: Sequence[Cause]) -> Cause | None:
    """The root cause: the earliest failure that is not a consequence of another. Times must be from one clock."""
    own = [failure for failure in failures if not is_consequence(failure)]
    return min(own or failures, key=lambda failure: float(failure["at"]), default=None)
