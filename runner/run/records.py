"""The records of a JSON-lines file, each with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def records(data: bytes, offset: int) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """The complete lines in `data`, as (offset in the file, record); None for a line that is no record.

    Args:
        offset: Where in the file `data` begins.
    """
    for line in data.split(b"\n"):
        if line.strip():
            yield offset, _record(line)
        offset += len(line) + 1


def _record(line: bytes) -> Mapping[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        # A line torn by a full disk: the next one is whole again.
        return None
    return record if isinstance(record, dict) else None
