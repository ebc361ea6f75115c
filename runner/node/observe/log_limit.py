"""The cap on a log: its oldest part is freed as a hole in the file, so that every offset stays valid."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Callable

from ...protocol.events import Event
from ...protocol.regular import regular
from ..journal import note

_KEEP_SIZE_PUNCH_HOLE = 0x03
_BLOCK = 1 << 20
_LAUNCHERS = 64 << 20
"""Of the launcher's log where there is no limit: mpirun writes a line for every stranger that connects to it."""


class LogLimit:
    """Keeps the newest `limit` bytes, and up to an eighth more, of every log of an attempt.

    Args:
        folder: The attempt's folder.
        limit: Bytes; None: no limit for ranks.
        say: Takes an event: the first hole in a log, or why there can be none.
    """

    def __init__(self, folder: str, limit: int | None, say: Callable[[Event], None]) -> None:
        self._folder = folder
        self._limit = limit
        self._holeless = False
        """Whether the file system has no holes."""
        self._say = say
        self._holes: dict[str, int] = {}

    def look(self, rank: int, size: int) -> None:
        """Check the size of a rank's log, and free its oldest part where it is over the limit."""
        if self._limit is not None:
            self._cut("rank-%d.log" % rank, "the log of rank %d" % rank, size, self._limit)

    def look_at_launcher(self) -> None:
        """The same for the launcher's log."""
        try:
            size = os.lstat(os.path.join(self._folder, "launcher.log")).st_size
        except OSError:
            return
        self._cut("launcher.log", "the launcher's log", size, self._limit or _LAUNCHERS)

    def _cut(self, name: str, called: str, size: int, limit: int) -> None:
        begun = self._holes.get(name, 0)
        end = (size - limit) // _BLOCK * _BLOCK
        if self._holeless or end - begun < max(_BLOCK, limit // 8):
            return
        self._holes[name] = end
        try:
            _punch(os.path.join(self._folder, name), begun, end - begun)
            why = "only its newest part is kept on this host (launch.log_limit)"
        except OSError as error:
            self._holeless = True
            why = "it cannot be cut down on this file system (%s): it grows on" % error.strerror
        if not begun:
            text = "%s has more than %d MiB: %s" % (called, (size - end) >> 20, why)
            self._say(note(text))


def data_from(fd: int, offset: int) -> int:
    """The offset of the next data from `offset` on: `offset` itself, the end of a hole there, or the file's end."""
    if sys.platform != "linux":
        return offset
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:
        return max(offset, os.fstat(fd).st_size)


def _punch(path: str, offset: int, length: int) -> None:
    """Free a part of a file. Raises OSError where the system cannot."""
    if sys.platform != "linux":
        raise OSError(95, "only Linux can")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    fd = regular(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        if libc.fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, offset, length):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)
