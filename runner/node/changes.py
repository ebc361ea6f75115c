"""Tells when the files of folders change (inotify)."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Optional

MODIFY, MOVED_TO, CREATE = 0x2, 0x80, 0x100
_CLOSE_WRITE, _MOVED, _DELETE = 0x8, 0xC0, 0x200
_MOST_READS = 100
"""At once: others may change the folder as fast as it is read."""
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, getattr(os, "O_CLOEXEC", 0)


def begin() -> Optional[int]:
    """A descriptor that watches no folder yet; None where the system has none to give."""
    if sys.platform != "linux":
        return None
    fd = int(ctypes.CDLL(None).inotify_init1(_NONBLOCK | _CLOEXEC))
    return fd if fd >= 0 else None


def add(fd: int, folder: str, kinds: int) -> bool:
    """Make the descriptor readable at each change of these kinds; False where the system can watch no more folders."""
    return int(ctypes.CDLL(None).inotify_add_watch(fd, os.fsencode(folder), kinds)) >= 0


def watch(folder: str) -> Optional[int]:
    """A descriptor that becomes readable when a file is made, removed or closed by its writer; None as of `begin`."""
    fd = begin()
    if fd is not None and not add(fd, folder, _CLOSE_WRITE | _MOVED | CREATE | _DELETE):
        os.close(fd)
        return None
    return fd


def drain(fd: int, prefix: str) -> bool:
    """Read the news of the folder; whether any of it concerns a file whose name begins with `prefix`."""
    found = False
    for _ in range(_MOST_READS):
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            break
        found = found or prefix.encode() in data or len(data) > 60000
    return found
