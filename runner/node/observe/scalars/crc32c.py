"""The checksum of TFRecord files: CRC-32C (Castagnoli, RFC 3720), rotated and shifted by a constant."""

from __future__ import annotations

from typing import List

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
