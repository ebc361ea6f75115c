"""The JSON lines of our own files; other content is left out."""

from __future__ import annotations

import json
import re

_LONG = re.compile(rb"\d{19}")


def _int(text: str) -> int:
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(text[:20])
    return int(text)


def records(lines: list[bytes]) -> list[dict[str, object]]:
    """The lines that are JSON objects; malformed ones, and those with integers of more than 64 bits, are left out."""
    found = []
    for line in lines:
        try:
            record = json.loads(line, parse_int=_int) if _LONG.search(line) else json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found
