"""Weights & Biases' offline files (`run-ID.wandb`): LevelDB's log format, with records of wandb_internal.proto.

A head of 7 bytes (`:W&B`, 0xBEE1, version 0), then blocks of 32 KiB as in leveldb/doc/log_format.md, but with the plain
CRC-32 of zlib (wandb/sdk/internal/datastore.py). Of the records, `Record.history` (2) counts: `HistoryRecord.item` (1)
with `key` (1) or `nested_key` (2) and `value_json` (16), and `HistoryRecord.step` (2) with `num` (1).
"""

from __future__ import annotations

import struct
import zlib
from typing import List, Optional, Tuple

from . import wire
from .sample import MalformedFileError, Sample, note, whole_step

_HEAD = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_PART = struct.Struct("<IHB")
_BLOCK = 32768
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LONGEST = 64 << 10
"""Bytes of the longest record that is parsed."""
_LONGEST_VALUE = 40
"""Characters of a number in JSON."""


class WandbFile:
    """Reads one offline file piece by piece."""

    def __init__(self) -> None:
        self._begun: Optional[bytearray] = None
        """The record whose last part has not come yet; None between records, and for one that is too long."""

    def take(self, piece: bytes, offset: int, samples: List[Sample]) -> int:
        """Parse the piece at `offset`; its samples are appended to `samples`.

        Returns the bytes consumed, more than the piece has where the following bytes are to be skipped. Raises
        MalformedFileError.
        """
        at = 0
        if offset == 0:
            if len(piece) < len(_HEAD):
                return 0
            if not piece.startswith(_HEAD):
                raise MalformedFileError("not a header of Weights & Biases")
            at = len(_HEAD)
        while True:
            left = _BLOCK - (offset + at) % _BLOCK
            if left < _PART.size:
                at += left  # the end of a block is padding
                continue
            if at + _PART.size > len(piece):
                break
            crc, size, kind = _PART.unpack_from(piece, at)
            body = at + _PART.size
            if size > left - _PART.size or not _WHOLE <= kind <= _LAST:
                raise MalformedFileError("a record of an unknown kind")
            if body + size > len(piece):
                break
            part = piece[body : body + size]
            if zlib.crc32(part, zlib.crc32(bytes([kind]))) != crc:
                raise MalformedFileError("a record whose checksum is wrong")
            record = self._join(kind, part)
            sample = _history(memoryview(record)) if record else None
            if sample is not None and sample.values:
                samples.append(sample)
            at = body + size
        return min(at, len(piece))

    def _join(self, kind: int, part: bytes) -> Optional[bytes]:
        """The whole record that a part completes, if any."""
        if kind == _WHOLE:
            return part
        if kind == _FIRST:
            self._begun = bytearray(part)
        elif self._begun is not None:
            self._begun += part
            if len(self._begun) > _LONGEST:
                self._begun = None
        if kind != _LAST or self._begun is None:
            return None
        record, self._begun = bytes(self._begun), None
        return record


def _history(record: memoryview) -> Optional[Sample]:
    for number, kind, value in wire.fields(record):
        if number == 2 and kind == 2 and isinstance(value, memoryview):
            return _sample(value)
    return None


def _sample(history: memoryview) -> Sample:
    sample = Sample(0, None, {})
    for number, kind, value in wire.fields(history):
        if kind != 2 or not isinstance(value, memoryview):
            continue
        if number == 2:
            numbers = [whole_step(num) for field, sort, num in wire.fields(value) if (field, sort) == (1, 0)]
            sample = sample._replace(step=numbers[-1] if numbers else 0)
        elif number == 1:
            names, number_text = _item(value)
            if names == ["_timestamp"] and number_text:
                sample = sample._replace(t=float(number_text))
            elif number_text and names and not names[0].startswith("_"):
                note(sample.values, ".".join(names), number_text)
    return sample


def _item(data: memoryview) -> Tuple[List[str], str]:
    """The name's parts, and the number's text; empty if it is not a number."""
    names: List[str] = []
    number_text = ""
    for number, kind, value in wire.fields(data):
        if kind != 2 or not isinstance(value, memoryview):
            continue
        if number in (1, 2):
            names.append(wire.text(value))
        elif number == 16 and len(value) <= _LONGEST_VALUE:
            number_text = wire.text(value)
    try:
        float(number_text)
    except ValueError:
        number_text = ""
    return names, number_text
