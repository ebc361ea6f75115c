"""Parses the records of JSON-lines files, each with its offset, and the messages of hosts.

Data of hosts is untrusted: results contain only finite numbers and have a bounded depth.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from disttui.runner.text import clean

_Read = TypeVar("_Read")

MOST = 1 << 53
"""Bound of whole numbers: a float represents every smaller one exactly."""


def whole(value: Any, below: int = MOST) -> int | None:
    """Return `value` if it is an integer from 0 to below the bound, else None."""
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
    return value if usable else None


def text(value: Any, most: int) -> str:
    """Return `value` cut to `most` characters and made safe to print if it is text, else ""."""
    return clean(value[:most]) if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, object]:
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def each(items: Any, read: Callable[[Mapping[str, Any]], _Read | None], most: int) -> tuple[_Read, ...]:
    """Return the results of `read` for the objects among the first `most` items of a list, without None."""
    if not isinstance(items, list):
        return ()
    found = (read(item) for item in items[:most] if isinstance(item, dict))
    return tuple(item for item in found if item is not None)


LARGEST, SMALLEST = 1e18, 1e-18
"""Bounds of the absolute value of nonzero numbers: sums, quotients and powers of a few of them remain finite."""
_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_EXPONENTS = bytes.maketrans(b"123456789E", b"111111111e")
_LONG_EXPONENTS = (b"e10", b"e11", b"e00", b"e010", b"e011")
_MOST = 1 << 63
_MOST_PIECES = 128
"""Pieces of a JSON file of at most `LONGEST` bytes, as the node program cuts it, with a margin."""
LONGEST = 4 << 20
"""Bytes of the longest record; longer lines are not parsed."""
DEEPEST = 64
"""Deepest nesting of lists and objects: far above that of our records, and below the limits of recursive printers."""


def records(data: bytes, offset: int) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """Yield the lines in `data` as (offset in the file, record); the record is None for a malformed line.

    Args:
        offset: Offset of `data` in the file.
    """
    for line in data.split(b"\n"):
        if line.strip():
            yield offset, json_object(line)
        offset += len(line) + 1


class Unfinished:
    """The incomplete last record of a file, which a hostile host may send byte by byte and endlessly."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._begin = 0
        """Offset of the incomplete record, or of a line longer than LONGEST."""
        self._pieces = 0
        self._too_long = False

    def lines(self, offset: int, data: bytes) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        """Add the bytes at `offset` of a JSON-lines file; yield the records that they complete, as `records` does."""
        body, newline, rest = data.rpartition(b"\n")
        if newline and self._too_long:
            yield self._begin, None
            first, _, body = body.partition(b"\n")
            yield from records(body, offset + len(first) + 1)
        elif newline:
            yield from records(bytes(self._held) + body, self._begin if self._held else offset)
        if newline:
            self._held.clear()
            self._too_long = False
        if self._too_long:
            return
        if not self._held:
            self._begin = offset + len(data) - len(rest)
        self._held += rest
        self._too_long = len(self._held) > LONGEST
        if self._too_long:
            self._held.clear()

    def whole_file(self, offset: int, data: bytes) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        """Add the bytes at `offset` of a JSON file that may arrive in pieces; yield (offset, record or None)."""
        self._pieces += 1
        if self._pieces > _MOST_PIECES or len(self._held) + len(data) > LONGEST:
            self._held.clear()
            self._pieces = _MOST_PIECES
            return
        if not self._held:
            self._begin = offset
        self._held += data
        yield from records(bytes(self._held), self._begin)


def json_object(data: bytes) -> dict[str, Any] | None:
    """Parse a single JSON object; None if `data` is anything else.

    Numbers that are not finite become "nan", "inf" and "-inf", and so do those beyond LARGEST; those below SMALLEST
    become 0. Integers of more than 64 bits make the object invalid.
    """
    # json.loads with these options would make a new decoder for every line.
    return _object(data, _CAREFUL if _unusual(data) else _QUICK)


def message(data: bytes) -> dict[str, Any] | None:
    """Parse a host's message like `json_object`, but replace unsupported numbers by None and keep the rest."""
    return _object(data, _PATIENT)


def _object(data: bytes, decoder: json.JSONDecoder) -> dict[str, Any] | None:
    try:
        text = data.decode().strip(" \t\n\r")
        record, end = decoder.raw_decode(text)  # faster than decode, which searches spaces by two expressions
    except (ValueError, RecursionError):
        # A full disk may cut a line; the next one is complete again.
        return None
    if end < len(text) or not isinstance(record, dict):
        return None
    return None if data.count(b"[") + data.count(b"{") > DEEPEST and _is_deep(record) else record


def _is_deep(value: Any) -> bool:
    layer = [value]
    for _ in range(DEEPEST):
        layer = [
            inner
            for one in layer
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return False
    return True


def _unusual(data: bytes) -> bool:
    """Whether a number may be beyond 64 bits or the bounds: 19 digits in a row, or two in an exponent."""
    # A regular expression would be slower than parsing the JSON.
    if b"0" * 19 in data.translate(_ALIKE):
        return True
    shape = data.translate(_EXPONENTS, b"+-")
    return any(exponent in shape for exponent in _LONG_EXPONENTS)


def bounded(value: float) -> float | str:
    """Return a number within the bounds: 0 for smaller ones, "inf" or "-inf" for larger ones."""
    if SMALLEST <= abs(value) <= LARGEST:
        return value
    return 0.0 if abs(value) < SMALLEST else str(math.copysign(math.inf, value))


def _int(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) >= _MOST:
        raise ValueError(text)
    return value


def _patient_float(text: str) -> float | None:
    value = bounded(float(text))
    return None if isinstance(value, str) else value


def _patient_int(text: str) -> int | None:
    return None if len(text) > 20 or abs(value := int(text)) >= _MOST else value


def _constant(name: str) -> str:
    return str(float(name))


_QUICK = json.JSONDecoder(parse_constant=_constant)
_PATIENT = json.JSONDecoder(parse_constant=lambda _: None, parse_float=_patient_float, parse_int=_patient_int)
_CAREFUL = json.JSONDecoder(parse_constant=_constant, parse_float=lambda text: bounded(float(text)), parse_int=_int)
