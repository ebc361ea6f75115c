"""Which of an attempt's failures was the first, and which only followed from another."""

from __future__ import annotations

import re
from typing import Any

# What ranks die of when another has died before (gloo, NCCL, the store).
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset)( by)? ?(the )?(remote )?(peer)?|connection closed by peer|connection refused"
    r"|read error|broken pipe|timed out waiting|socket timeout|failed to recv, got 0 bytes"
    r"|remote process (has )?exited|nccl.*(remote|abort)|sendbytes failed|connectfullmesh failed|sigterm"
    r"|std::terminate: without an active exception",
    re.IGNORECASE,
)


def is_consequence(failure: dict[str, Any]) -> bool:
    """Whether a failure looks like the echo of another one."""
    if failure["kind"] == "signal":
        return bool(failure["code"] == -15)
    return failure["kind"] == "exception" and bool(
        _CONSEQUENCE.search(f"{failure.get('type')}: {failure.get('message')}")
    )


def root(failures: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The failure to blame: the earliest that is no consequence. Times must be of one clock."""
    own = [failure for failure in failures if not is_consequence(failure)]
    return min(own or failures, key=lambda failure: float(failure["at"]), default=None)
