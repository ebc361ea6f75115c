"""Opens the files of a run's folder, where a job or another host may have put something else in their place."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def regular(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file and nothing else, as `opener` of `open`: a pipe in its place would block for ever.

    Raises OSError.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "this is no regular file", os.fspath(path))


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raises OSError."""
    return os.fdopen(regular(path, os.O_RDONLY), "rb")


def read_regular(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """The first `most` bytes of a regular file; all of them by default. Raises OSError."""
    with open_regular(path) as file:
        return file.read(most)
