"""Creates files and folders private to this user under any umask, and reads untrusted files safely."""

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
    """A pipe, socket or device, which could block or never end when read."""


def read(path: Path | str, most: int, *, devices: bool = False) -> tuple[bytes, os.stat_result]:
    """Read up to `most` bytes of a regular file; return them and the status of the open file.

    Args:
        devices: Whether character devices may be read as well.

    Raises:
        NoRegularFileError: It is not a regular file; detected without blocking.
        OSError: It cannot be read.
    """
    # O_NONBLOCK, since a pipe may have just replaced the file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(status.st_mode) and not (devices and stat.S_ISCHR(status.st_mode)):
            raise NoRegularFileError(errno.EINVAL, "not a regular file")
        # In pieces: allocating a buffer of `most` bytes costs more than reading a small file.
        pieces, left, piece = [], most, max(status.st_size + 1, 65536)
        while left and (data := os.read(descriptor, min(left, piece))):
            pieces.append(data)
            left -= len(data)
        return b"".join(pieces), status
    except BlockingIOError:  # /proc/kmsg claims to be a regular file
        raise NoRegularFileError(errno.EINVAL, "not a regular file") from None
    finally:
        os.close(descriptor)


def open_named(path: Path) -> BinaryIO:
    """Open a file named by the user: a regular one, or one that a shell has already opened, as bash's `<(…)`.

    Raises OSError.
    """
    if path == Path("/dev/stdin") or path.parent in (Path("/dev/fd"), Path("/proc/self/fd")):
        return path.open("rb")
    return open_regular(path)


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Create a folder and its missing parents, each with `mode`. Raises OSError."""
    missing = []
    above = folder
    while not above.exists() and above != above.parent:
        missing.append(above)
        above = above.parent
    for path in reversed(missing):
        path.mkdir(mode=mode, exist_ok=True)
    folder.mkdir(mode=mode, exist_ok=True)  # raises if a file is in its place


def lock(descriptor: int, patience: float) -> bool:
    """Lock an open file or folder; False if it stays locked for `patience` seconds. Raises OSError without locks."""
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
    """Whether a process has locked a file; False unless this user owns the file and its folder."""
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
    """Write a regular file, text as UTF-8; a new one is private to this user. Raises OSError."""
    descriptor = regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def replace(path: Path, content: str | bytes) -> None:
    """Replace a file atomically with a private one. Raises OSError, and then the old file is unchanged."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        write(part, content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
