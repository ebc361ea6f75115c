"""Protocol Buffers' wire format, as far as scalars need it (protobuf.dev/programming-guides/encoding), and the checksum
of TFRecord files: CRC-32C (Castagnoli, RFC 3720), rotated and shifted by a constant."""

from __future__ import annotations

import struct
from typing import Iterator, List, Tuple, Union

from .sample import MalformedFileError

Field = Tuple[int, int, Union[int, memoryview]]
"""Number, wire type, and an integer (type 0) or the bytes (types 1, 2 and 5)."""
_FIXED = {1: 8, 5: 4}
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


def fields(data: memoryview) -> Iterator[Field]:
    """The fields of one message in their order. Raises MalformedFileError."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise MalformedFileError("a field of an unknown type")
        if number == 0 or size > end - at:
            raise MalformedFileError("a field that is longer than its message")
        yield number, kind, data[at : at + size]
        at += size


def double(data: memoryview) -> float:
    """Eight bytes as a number. Raises MalformedFileError for another length."""
    return _unpack(_DOUBLE, data)


def single(data: memoryview) -> float:
    """Four bytes as a number. Raises MalformedFileError for another length."""
    return _unpack(_FLOAT, data)


def text(data: memoryview) -> str:
    """A string; bytes that are not UTF-8 are replaced."""
    return bytes(data).decode("utf-8", "replace")


def _unpack(form: struct.Struct, data: memoryview) -> float:
    if len(data) != form.size:
        raise MalformedFileError("a number of %d bytes" % len(data))
    return float(form.unpack(data)[0])


def _varint(data: memoryview, at: int) -> Tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise MalformedFileError("an unterminated number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise MalformedFileError("a number of more than ten bytes")


_POLYNOMIAL = 0x82F63B78  # reflected
_SHIFT = 0xA282EAD8


def masked(data: bytes) -> int:
    """The checksum as the files hold it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _SHIFT) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The plain checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table() -> List[int]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return found


_TABLE = _table()
