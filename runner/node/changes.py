"""Tells when a folder's files are made, removed, or closed by the last process that could write them (inotify)."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Optional

_CLOSE_WRITE, _MOVED, _CREATE, _DELETE = 0x8, 0xC0, 0x100, 0x200
_MOST_READS = 100
"""At once: others may change the folder as fast as it is read."""
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, getattr(os, "O_CLOEXEC", 0)


def watch(folder: str) -> Optional[int]:
    """A descriptor that becomes readable at each change; None where the system has none to give."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    fd = int(libc.inotify_init1(_NONBLOCK | _CLOEXEC))
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(folder), _CLOSE_WRITE | _MOVED | _CREATE | _DELETE) < 0:
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
