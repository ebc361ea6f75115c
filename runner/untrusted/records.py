"""Parses the records of JSON-lines files, each with its offset, and the messages of hosts.

Data of hosts is untrusted: the results have only finite numbers and a bounded depth.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from disttui.runner.text import clean

_Read = TypeVar("_Read")

MOST = 1 << 53
"""The bound of whole numbers: a float holds every smaller one exactly."""


def whole(value: Any, below: int = MOST) -> int | None:
    """`value` if it is a whole number of at least 0 and below the bound, else None."""
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
    return value if usable else None


def text(value: Any, most: int) -> str:
    """`value` if it is text, made safe to show and cut to `most` characters; else empty."""
    return clean(value[:most]) if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, object]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def each(items: Any, read: Callable[[Mapping[str, Any]], _Read | None], most: int) -> tuple[_Read, ...]:
    """The results of `read` for the first `most` objects of a list, without None."""
    if not isinstance(items, list):
        return ()
    found = (read(item) for item in items[:most] if isinstance(item, dict))
    return tuple(item for item in found if item is not None)


LARGEST, SMALLEST = 1e18, 1e-18
"""The bounds of numbers other than 0: sums, quotients and powers of a few of them are still floats."""
_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_EXPONENTS = bytes.maketrans(b"123456789E", b"111111111e")
_LONG_EXPONENTS = (b"e10", b"e11", b"e00", b"e010", b"e011")
_MOST = 1 << 63
_MOST_PIECES = 128
"""The most pieces of a JSON file of that length, as the node program cuts it, with a margin."""
LONGEST = 4 << 20
"""Bytes of the longest record; longer lines are not parsed."""
DEEPEST = 64
"""The deepest nesting of lists and objects: far above ours, and below the limits of recursive printers."""


def records(data: bytes, offset: int) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """The complete lines in `data`, as (offset in the file, record); None for a malformed line.

    Args:
        offset: Where in the file `data` begins.
    """
    for line in data.split(b"\n"):
        if line.strip():
            yield offset, json_object(line)
        offset += len(line) + 1


class Unfinished:
    """The incomplete last record of a file; from a hostile host it may arrive byte by byte, and never end."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._begin = 0
        """Offset of the incomplete record, or of a line that is too long."""
        self._pieces = 0
        self._too_long = False

    def lines(self, offset: int, data: bytes) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        """Take the bytes at `offset` of a JSON-lines file; return the records that they complete, as `records` does."""
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
        """Take the bytes at `offset` of a JSON file, which is complete (written by rename) but may come in pieces."""
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
    """The one JSON object in `data`, None if there is no object.

    Numbers that are not finite come as "nan", "inf" and "-inf", those beyond LARGEST too, and those below SMALLEST as
    0; integers of more than 64 bits are no JSON here.
    """
    # Not json.loads: it makes a new decoder for every line.
    return _object(data, _CAREFUL if _unusual(data) else _QUICK)


def message(data: bytes) -> dict[str, Any] | None:
    """The same for a message of a host: an unsupported number becomes null, and the rest of the message is kept."""
    return _object(data, _PATIENT)


def _object(data: bytes, decoder: json.JSONDecoder) -> dict[str, Any] | None:
    try:
        text = data.decode().strip(" \t\n\r")
        record, end = decoder.raw_decode(text)  # decode looks for spaces with two expressions
    except (ValueError, RecursionError):
        # A line cut by a full disk: the next one is complete again.
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
    # A regular expression would take longer than parsing the JSON.
    if b"0" * 19 in data.translate(_ALIKE):
        return True
    shape = data.translate(_EXPONENTS, b"+-")
    return any(exponent in shape for exponent in _LONG_EXPONENTS)


def bounded(value: float) -> float | str:
    """A number within the bounds: 0 where it is hardly more, "inf" or "-inf" beyond them."""
    if SMALLEST <= abs(value) <= LARGEST:
        return value
    return 0.0 if abs(value) < SMALLEST else str(math.copysign(math.inf, value))


def _float(text: str) -> float | str:
    return bounded(float(text))


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
_CAREFUL = json.JSONDecoder(parse_constant=_constant, parse_float=_float, parse_int=_int)
