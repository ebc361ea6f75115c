"""The cap on a rank's log: its oldest part is freed as a hole in the file, so that every offset stays valid."""

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


class LogLimit:
    """Keeps the newest `limit` bytes, and up to an eighth more, of every rank's log of an attempt.

    Args:
        folder: The attempt's folder.
        limit: Bytes; None: no limit.
        say: Takes an event: the first hole in a log, or why there can be none.
    """

    def __init__(self, folder: str, limit: int | None, say: Callable[[Event], None]) -> None:
        self._folder = folder
        self._limit = limit
        self._say = say
        self._holes: dict[int, int] = {}

    def look(self, rank: int, size: int) -> None:
        """Check a log's size, and free its oldest part where it is over the limit."""
        if self._limit is None:
            return
        begun = self._holes.get(rank, 0)
        end = (size - self._limit) // _BLOCK * _BLOCK
        if end - begun < max(_BLOCK, self._limit // 8):
            return
        self._holes[rank] = end
        try:
            _punch(os.path.join(self._folder, "rank-%d.log" % rank), begun, end - begun)
            why = "only its newest part is kept on this host (launch.log_limit)"
        except OSError as error:
            self._limit = None
            why = "it cannot be cut down on this file system (%s): it grows on" % error.strerror
        if not begun:
            text = "the log of rank %d has more than %d MiB: %s" % (rank, (size - end) >> 20, why)
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
