"""Sizes of the ranks' logs, and the cap on a log: its oldest part becomes a hole, so that every offset stays valid."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Callable, Iterable

from ...protocol.events import Event
from ...protocol.regular import regular
from ..journal import Journal, note

_KEEP_SIZE_PUNCH_HOLE = 0x03
_BLOCK = 1 << 20


class LogLimit:
    """Keeps the newest `limit` bytes, and up to an eighth more, of each of an attempt's logs.

    Args:
        folder: The attempt's folder.
        limit: Bytes; None: ranks' logs are unlimited.
        say: Called with an event: the first hole in a log, or why holes are impossible.
    """

    def __init__(self, folder: str, limit: int | None, say: Callable[[Event], None]) -> None:
        self._folder = folder
        self._limit = limit
        self._holeless = False
        """Whether the file system does not support holes."""
        self._say = say
        self._holes: dict[str, int] = {}

    def look(self, rank: int, size: int) -> None:
        """Check the size of a rank's log, and free its oldest part if it exceeds the limit."""
        if self._limit is not None:
            self._cut("rank-%d.log" % rank, "the log of rank %d" % rank, size, self._limit)

    def look_at_launcher(self) -> None:
        """Check the launcher's log in the same way."""
        try:
            size = os.lstat(os.path.join(self._folder, "launcher.log")).st_size
        except OSError:
            return
        # For the launcher's log if there is no limit: mpirun writes a line for every stranger that connects to it
        self._cut("launcher.log", "the launcher's log", size, self._limit or 64 << 20)

    def _cut(self, name: str, called: str, size: int, limit: int) -> None:
        begun = self._holes.get(name, 0)
        end = (size - limit) // _BLOCK * _BLOCK
        if self._holeless or end - begun < max(_BLOCK, limit // 8):
            return
        self._holes[name] = end
        try:
            _punch(os.path.join(self._folder, name), begun, end - begun)
            why = "only its newest part stays on this host (launch.log_limit)"
        except OSError as error:
            self._holeless = True
            why = "it cannot be truncated on this file system (%s) and keeps growing" % error.strerror
        if not begun:
            text = "%s has more than %d MiB: %s" % (called, (size - end) >> 20, why)
            self._say(note(text))


def data_from(fd: int, offset: int) -> int:
    """The offset of the next data at or after `offset`: `offset` itself, the end of a hole, or the end of the file."""
    if sys.platform != "linux":
        return offset
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:
        return max(offset, os.fstat(fd).st_size)


def _punch(path: str, offset: int, length: int) -> None:
    """Free a part of a file. Raises OSError if the system cannot."""
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


class GrowthWriter:
    """Records the sizes of the ranks' logs each time `look` is called.

    Args:
        folder: The attempt's folder.
        ranks: The global ranks of this host.
    """

    def __init__(self, folder: str, ranks: Iterable[int]) -> None:
        self._logs = {rank: os.path.join(folder, f"rank-{rank}.log") for rank in ranks}
        self._journal = Journal(os.path.join(folder, "growth.jsonl"))
        self.sizes: dict[int, int] = {}

    def look(self) -> set[int]:
        """Record the sizes that have changed since the last call; returns the ranks whose logs have grown."""
        changed = {}
        for rank, log in self._logs.items():
            try:
                size = os.stat(log).st_size
            except OSError:
                continue
            if size != self.sizes.get(rank, 0):
                changed[rank] = self.sizes[rank] = size
        if changed:
            sizes = {str(rank): size for rank, size in changed.items()}
            self._journal.add({"t": round(time.time(), 3), "sizes": sizes})
        return set(changed)
