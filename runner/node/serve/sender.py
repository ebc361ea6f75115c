"""Writes frames to the viewer."""

from __future__ import annotations

import threading
from typing import Any, BinaryIO

from ...protocol.frames import pack_data, pack_json


class Sender:
    """Writes whole frames to a descriptor from several threads."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def json(self, message: Any) -> None:
        """Send one JSON object."""
        self._write(pack_json(message))

    def data(self, file: int, generation: int, offset: int, data: bytes) -> None:
        """Send bytes of a file."""
        self._write(pack_data(file, generation, offset, data))

    def _write(self, frame: bytes) -> None:
        view = memoryview(frame)
        with self._lock:
            while view:
                view = view[self._stream.write(view) or 0 :]
