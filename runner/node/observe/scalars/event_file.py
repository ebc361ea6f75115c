"""TensorBoard's event files: TFRecords of `tensorflow.Event` messages.

Framing: tensorflow/core/lib/io/record_writer.h; messages: tensorboard/compat/proto/event.proto, summary.proto and
tensor.proto.
"""

from __future__ import annotations

import struct
from typing import List, Optional

from . import wire
from .sample import MalformedFileError, Sample, note, whole_step
from .wire import masked

_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_LONGEST = 4096
"""Bytes of the longest record that is parsed: a scalar takes less than 300; images and histograms are not metrics."""
_LARGEST = 1 << 40
_FLOAT, _DOUBLE = 1, 2
_HYPERPARAMETERS = "_hparams_/"
"""The beginning of tags whose metadata are the content: their tensor holds nothing."""


class EventFile:
    """Reads one event file piece by piece."""

    def take(self, piece: bytes, offset: int, samples: List[Sample]) -> int:
        """Parse the piece at `offset`; its samples are appended to `samples`.

        Returns the bytes consumed, more than the piece has where the following bytes are to be skipped. Raises
        MalformedFileError.
        """
        at = 0
        while at + _LENGTH.size <= len(piece):
            size, crc = _LENGTH.unpack_from(piece, at)
            if masked(piece[at : at + 8]) != crc or size > _LARGEST:
                raise MalformedFileError("a record whose checksum is wrong")
            body = at + _LENGTH.size
            end = body + size + _CRC.size
            if size <= _LONGEST:
                if end > len(piece):
                    break
                record = piece[body : body + size]
                if masked(record) != _CRC.unpack_from(piece, body + size)[0]:
                    raise MalformedFileError("a record whose checksum is wrong")
                sample = _event(memoryview(record))
                if sample is not None and sample.values:
                    samples.append(sample)
            at = end
        return at


def _event(data: memoryview) -> Optional[Sample]:
    when: Optional[float] = None
    step: Optional[int] = 0  # protobuf's default
    summary: Optional[memoryview] = None
    for number, kind, value in wire.fields(data):
        if number == 1 and kind == 1:
            when = wire.double(_bytes(value))
        elif number == 2 and kind == 0:
            step = whole_step(value)
        elif number == 5 and kind == 2:
            summary = _bytes(value)
    if summary is None:
        return None
    sample = Sample(step, when, {})
    for number, kind, value in wire.fields(summary):
        if number == 1 and kind == 2:
            _scalar(sample, _bytes(value))
    return sample


def _scalar(sample: Sample, data: memoryview) -> None:
    tag, found = "", None
    for number, kind, value in wire.fields(data):
        if number == 1 and kind == 2:
            tag = wire.text(_bytes(value))
        elif number == 2 and kind == 5:
            found = wire.single(_bytes(value))
        elif number == 8 and kind == 2:
            found = _tensor(_bytes(value))
    if found is not None and not tag.startswith(_HYPERPARAMETERS):
        note(sample.values, tag, "%.7g" % found)


def _tensor(data: memoryview) -> Optional[float]:
    """The number in a tensor that holds one, None for any other."""
    dtype = 0
    content: List[float] = []
    for number, kind, value in wire.fields(data):
        if number == 1 and kind == 0:
            dtype = int(value) if isinstance(value, int) else 0
        elif number in (4, 5, 6) and kind in (1, 2, 5):
            raw = _bytes(value)
            single = number == 5 or (number == 4 and dtype == _FLOAT)
            if len(raw) == (4 if single else 8):
                content.append(wire.single(raw) if single else wire.double(raw))
    return content[0] if dtype in (_FLOAT, _DOUBLE) and len(content) == 1 else None


def _bytes(value: object) -> memoryview:
    assert isinstance(value, memoryview)
    return value
