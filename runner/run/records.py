"""The records of a JSON-lines file, each with its place. What hosts write is hostile: only finite numbers come out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_MOST = 1 << 63


def records(data: bytes, offset: int) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """The complete lines in `data`, as (offset in the file, record); None for a line that is no record.

    Args:
        offset: Where in the file `data` begins.
    """
    for line in data.split(b"\n"):
        if line.strip():
            yield offset, json_object(line)
        offset += len(line) + 1


def json_object(data: bytes) -> dict[str, Any] | None:
    """The one JSON object in `data`, None where there is none.

    Numbers that are not finite come as "nan", "inf" and "-inf"; integers of more than 64 bits are no JSON here.
    """
    try:
        # Not json.loads: it makes a new decoder for every line.
        record = (_CAREFUL if _unusual(data) else _QUICK).decode(data.decode())
    except (ValueError, RecursionError):
        # A line torn by a full disk: the next one is whole again.
        return None
    return record if isinstance(record, dict) else None


def _unusual(data: bytes) -> bool:
    """Whether numbers may be beyond 64 bits or beyond a float's range."""
    # A regular expression takes longer for a line than its JSON does.
    shape = data.translate(_ALIKE, b"+")
    return b"0" * 19 in shape or b"e000" in shape


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else str(value)


def _int(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) >= _MOST:
        raise ValueError(text)
    return value


def _constant(name: str) -> str:
    return str(float(name))


_QUICK = json.JSONDecoder(parse_constant=_constant)
_CAREFUL = json.JSONDecoder(parse_constant=_constant, parse_float=_float, parse_int=_int)
