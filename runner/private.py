"""Folders and files for this user alone, with any umask; and files of others, read without a risk."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from pathlib import Path
from typing import BinaryIO

from disttui.runner.protocol.regular import open_regular, regular


class NoRegularFileError(OSError):
    """A pipe, a socket or a device: reading it could wait forever, or never end."""


def read(path: Path | str, most: int, *, devices: bool = False) -> tuple[bytes, os.stat_result]:
    """The first `most` bytes of a regular file, and the status of what they are read from.

    Args:
        devices: Whether a device may be read as well.

    Raises:
        NoRegularFileError: It is not a regular file; nothing was waited for.
        OSError: It cannot be read.
    """
    # Not blocking: a pipe may have taken the place of a file a moment ago.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(status.st_mode) and not (devices and stat.S_ISCHR(status.st_mode)):
            raise NoRegularFileError(errno.EINVAL, "not a regular file")
        # In pieces: a buffer for all that is allowed costs more than the reading of a small file.
        pieces, left, piece = [], most, max(status.st_size + 1, 65536)
        while left and (data := os.read(descriptor, min(left, piece))):
            pieces.append(data)
            left -= len(data)
        return b"".join(pieces), status
    except BlockingIOError:  # /proc/kmsg says that it is a regular file
        raise NoRegularFileError(errno.EINVAL, "not a regular file") from None
    finally:
        os.close(descriptor)


def open_named(path: Path) -> BinaryIO:
    """Open a file that the user names: a regular one, or what a shell has opened already, as `<(…)` of bash.

    Raises OSError.
    """
    if path == Path("/dev/stdin") or path.parent in (Path("/dev/fd"), Path("/proc/self/fd")):
        return path.open("rb")
    return open_regular(path)


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Make a folder and those above it that are missing, each with `mode`. Raises OSError."""
    missing = []
    above = folder
    while not above.exists() and above != above.parent:
        missing.append(above)
        above = above.parent
    for path in reversed(missing):
        path.mkdir(mode=mode, exist_ok=True)
    folder.mkdir(mode=mode, exist_ok=True)  # raises where a file is in its place


def lock(descriptor: int, patience: float) -> bool:
    """Lock an open file or folder against other processes; False: another one has held it for `patience` seconds."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
            return True


def in_use(path: Path) -> bool:
    """Whether a process has locked a file that only this user can have put there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if {os.fstat(descriptor).st_uid, path.parent.lstat().st_uid} != {os.getuid()}:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        os.close(descriptor)


def write(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8; a new one is private to this user. Raises OSError."""
    descriptor = regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def replace(path: Path, content: str | bytes) -> None:
    """Write a private file in place of an earlier one, which stays as it was if that fails. Raises OSError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        write(part, content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
