"""The libraries that a shared library needs, read from its file: loading torch's would take seconds."""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, List, Optional, Tuple

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS = 1, 5
_MOST = 1 << 20
"""Bytes of a table; torch's have some ten thousand."""


def needed(path: str) -> Optional[List[str]]:
    """Return their names, None where it is no 64-bit little-endian ELF file, or cannot be read."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return _needed(file)
    except (OSError, struct.error, StopIteration, ValueError, OverflowError):
        return None


def _needed(file: BinaryIO) -> Optional[List[str]]:
    """Sources: the System V ABI, chapters 4 and 5, and its supplement for 64 bits."""
    head = file.read(64)
    if head[:6] != b"\x7fELF\x02\x01":
        return None
    (start,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    table = _read(file, start, size * count)
    # Type, offset in the file, address, size in the file.
    segments = [
        (struct.unpack_from("<I", table, at)[0], *struct.unpack_from("<QQ8xQ", table, at + 8))
        for at in range(0, len(table), size)
    ]
    _, at, _, length = next(one for one in segments if one[0] == _DYNAMIC)
    entries: List[Tuple[int, int]] = list(struct.iter_unpack("<qQ", _read(file, at, length - length % 16)))
    address = next(value for tag, value in entries if tag == _STRINGS)
    offset = next(
        at + address - begin for kind, at, begin, length in segments if kind == _LOAD and 0 <= address - begin < length
    )
    return [_string(file, offset + value) for tag, value in entries if tag == _NEEDED]


def _string(file: BinaryIO, at: int) -> str:
    return _read(file, at, 256).partition(b"\0")[0].decode("utf-8", "replace")


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    if size > _MOST:
        raise ValueError("too large for a table")
    file.seek(at)
    return file.read(size)
