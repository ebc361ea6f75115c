"""What an event must hold to be of use to anybody: a host may write what it likes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "join": {"node": int},
    "waiting": {"missing": list},
    "clock": {"node": int, "offset": int | float},
    "host": {"node": int, "state": str},
    "attempt": {"attempt": int, "master": str, "world_size": int},
    "launch": {"attempt": int, "t": int | float},
    "rank": {"attempt": int, "rank": int},
    "group": {"attempt": int, "rank": int},
    "error": {"attempt": int},
    "death": {"attempt": int},
    "failed": {"attempt": int, "cause": Mapping | None},
    "stopping": {"attempt": int, "t": int | float},
    "ungrouped": {"attempt": int},
    "left": {"processes": list},
    "straggler": {"rank": int},
}
"""Kind of event → its fields that are read without a second look."""


def check(event: Mapping[str, Any], hosts: int) -> None:
    """Raise KeyError, TypeError or ValueError for an event that makes no sense in a run of so many hosts."""
    kind = event.get("e")
    for name, wanted in _SHAPES.get(kind, {}).items() if isinstance(kind, str) else ():
        if isinstance(event[name], bool) or not isinstance(event[name], wanted):
            raise TypeError(name)
    nodes = event["missing"] if kind == "waiting" else [event["node"]] if kind in ("join", "clock", "host") else []
    if not all(isinstance(node, int) and 0 <= node < hosts for node in nodes):
        raise ValueError("no such host")
