"""Passes on what mpirun and orted print, but for one line that says nothing."""

from __future__ import annotations

import contextlib
import os
import re

_NOTHING = re.compile(rb"\[[^]\n]*\] PMIX ERROR: BAD-PARAM in file \S*/pmix_event_notification\.c at line \d+\n")
"""With its recovery on, mpirun fails to announce the end of a rank to nobody, each time that one fails."""
_PIECE = 64 << 10
_PIECES = 16
"""Pieces to read at once: a flood must not keep the caller."""
_LONGEST = 4096
"""Bytes of a line that is held back until its end is there."""


class Messages:
    """The standard error of a child, from a pipe to our own."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._begun = b""

    def pass_on(self) -> None:
        """Write what has come since the last call."""
        for _ in range(_PIECES):
            try:
                piece = os.read(self._reader, _PIECE)
            except BlockingIOError:
                return
            if not piece:
                return
            lines = (self._begun + piece).splitlines(keepends=True)
            self._begun = b"" if lines[-1].endswith(b"\n") or len(lines[-1]) > _LONGEST else lines.pop()
            self._write(b"".join(line for line in lines if not _NOTHING.fullmatch(line)))

    def end(self) -> None:
        """Write the rest."""
        self.pass_on()
        self._write(self._begun)
        self._begun = b""

    def _write(self, text: bytes) -> None:
        with contextlib.suppress(OSError):  # the disk is full
            while text:
                text = text[os.write(2, text) :]
