"""Which of an attempt's failures was the first, and which only followed from another."""

from __future__ import annotations

import re
from typing import Sequence, TypedDict


class Cause(TypedDict, total=False):
    """Why an attempt or a run has failed (docs/formats.md, "exit.json"). Whoever tells it may not know all of it."""

    node: int
    rank: int | None
    kind: str
    """exception, signal, exit, host lost, join, launch, supervisor lost or folder."""
    type: str
    message: str
    code: int | None
    """Negative for a signal."""
    at: float
    """Unix time."""
    last: float | None
    """Of a host or a supervisor that is lost: unix time of its last sign of life."""


class FailureReport(Cause, total=False):
    """A cause on its way to the leader."""

    disk: str
    """What the host says of its full disk, where that is why."""


# What ranks die of when another has died before (gloo, NCCL, the store).
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset)( by)? ?(the )?(remote )?(peer)?|connection closed by peer|connection refused"
    r"|read error|broken pipe|timed out waiting|socket timeout|failed to recv, got 0 bytes"
    r"|remote process (has )?exited|nccl.*(remote|abort)|sendbytes failed|connectfullmesh failed|sigterm"
    r"|std::terminate: without an active exception",
    re.IGNORECASE,
)


def is_consequence(failure: Cause) -> bool:
    """Whether a failure looks like the echo of another one."""
    if failure["kind"] == "signal":
        return bool(failure["code"] == -15)
    return failure["kind"] == "exception" and bool(
        _CONSEQUENCE.search(f"{failure.get('type')}: {failure.get('message')}")
    )


def root(failures: Sequence[Cause]) -> Cause | None:
    """The failure to blame: the earliest that is no consequence. Times must be of one clock."""
    own = [failure for failure in failures if not is_consequence(failure)]
    return min(own or failures, key=lambda failure: float(failure["at"]), default=None)
