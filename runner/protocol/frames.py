"""Frames: the protocol between the node program and a viewer on one byte stream (docs/formats.md, "Frames").

A frame consists of its type (`J` or `D`), the length of its payload, and the payload of at most LIMIT bytes.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Callable, Iterator, Optional, Tuple, Union

HEADER = struct.Struct(">cI")
DATA = struct.Struct(">IIQ")
"""File id, generation and offset, before the bytes of a `D` frame."""
LIMIT = 4 * 1024 * 1024

Frame = Union[dict, Tuple[int, int, int, memoryview]]  # type: ignore[type-arg]
"""A JSON object, or (file id, generation, offset, bytes)."""


def pack_json(message: Any) -> bytes:
    """Encode a message as a `J` frame."""
    payload = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(b"J", len(payload)) + payload


def pack_data(file: int, generation: int, offset: int, data: bytes) -> bytes:
    """Encode bytes of a file as a `D` frame."""
    return HEADER.pack(b"D", DATA.size + len(data)) + DATA.pack(file, generation, offset) + data


class Unpacker:
    """Splits a byte stream into frames. Raises ValueError for an invalid stream.

    Args:
        read: Parses the bytes of a `J` frame; returns None if they are not a JSON object.
    """

    def __init__(self, read: Optional[Callable[[bytes], Any]] = None) -> None:
        self._read = read or _loads
        self._begun = bytearray()
        """The incomplete frame at the end of the data so far."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Process bytes and yield the frames they complete. Pieces of files are not copied: they keep `data` alive."""
        rest = memoryview(data)
        while rest:
            size = _size(self._begun or rest)
            if not self._begun and size <= len(rest):
                frame, rest = rest[:size], rest[size:]
                yield self._frame(frame)
                continue
            wanted = size - len(self._begun)
            self._begun += rest[:wanted]
            rest = rest[wanted:]
            if len(self._begun) == _size(self._begun):
                whole, self._begun = memoryview(self._begun), bytearray()
                yield self._frame(whole)

    def _frame(self, frame: memoryview) -> Frame:
        payload = frame[HEADER.size :]
        if frame[0] == ord("D"):
            if len(payload) < DATA.size:
                raise ValueError("a data frame without its head")
            file, generation, offset = DATA.unpack_from(payload)
            return file, generation, offset, payload[DATA.size :]
        message = self._read(bytes(payload))
        if not isinstance(message, dict):
            raise ValueError("a message that is not an object")
        return message


def _size(frame: Union[bytearray, memoryview]) -> int:
    """Bytes of the frame that begins so, or of its header if the length is not known yet."""
    if len(frame) < HEADER.size:
        return HEADER.size
    kind, length = HEADER.unpack_from(frame)
    if length > LIMIT or kind not in (b"J", b"D"):
        raise ValueError("this is not a frame: %r" % bytes(frame[:32]))
    return HEADER.size + int(length)


def _loads(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except RecursionError:
        raise ValueError("a message nested too deep") from None
