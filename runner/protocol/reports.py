"""The ranks' own reports: the records of ranks.jsonl (docs/formats.md, "ranks.jsonl")."""

from __future__ import annotations

from typing import Literal, TypedDict

Kind = Literal["start", "group", "grouped", "error", "exit"]


class _Report(TypedDict):
    e: Kind
    rank: int
    t: float


class Report(_Report, total=False):
    """A rank's record; which of the further fields it has depends on `e`."""

    pid: int | None
    local_rank: int | None
    world_size: int | None
    start_time: int | None
    """Clock ticks since boot."""
    signal: int | None
    code: int | None
    type: str | None
    message: str | None
    traceback: str | None
    said: str | None
    backend: str | None
    door: str | None
