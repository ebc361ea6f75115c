"""Free space of file systems (bytes and inodes), and small files of the system that may be missing."""

from __future__ import annotations

import os
from typing import NamedTuple

_MIB = 1 << 20


class Room(NamedTuple):
    """Free space of a file system for this user; `inodes_total` is 0 if it has no fixed number of inodes."""

    free: int
    total: int
    inodes_free: int
    inodes_total: int


def room(path: str) -> Room:
    """Return the free space on the file system of `path`. Raises OSError."""
    seen = os.statvfs(path)
    root = os.geteuid() == 0  # only root may use the reserved blocks
    free, inodes = (seen.f_bfree, seen.f_ffree) if root else (seen.f_bavail, seen.f_favail)
    return Room(free * seen.f_frsize, seen.f_blocks * seen.f_frsize, inodes, seen.f_files)


def fullness(path: str) -> str:
    """Describe how the disk of `path` is full; "" if it is not, or if that is unknown."""
    try:
        left = room(path)
    except OSError:
        return ""
    if left.inodes_total and not left.inodes_free:
        return f"the disk of {path} has no free inodes ({left.inodes_total:,} in use)"
    if left.total and left.free < (64 * 1024):
        return f"the disk of {path} is full: {left.free // 1024} KiB free of {left.total // _MIB:,} MiB"
    return ""


def read_text(path: str) -> str:
    """The text of a file (1 MiB at most), or "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
