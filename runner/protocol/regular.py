"""Opens the files of a run's folder, where a job or another host may have put something else in their place."""

from __future__ import annotations

import contextlib
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
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raises OSError."""
    return os.fdopen(regular(path, os.O_RDONLY), "rb")


def read_regular(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """The first `most` bytes of a regular file; all of them by default. Raises OSError."""
    with open_regular(path) as file:
        return file.read(most)


def last_text(path: str | os.PathLike[str], most: int) -> str:
    """The text in the last `most` bytes of a regular file; empty where it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def shared_token(path: str) -> str:
    """A random token that a private file keeps, the same for every caller. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return read_regular(path, 32).decode("ascii", "replace")
    passing = f"{path}.{os.urandom(8).hex()}"
    fd = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, os.urandom(16).hex().encode())
        os.link(passing, path)
    except FileExistsError:
        pass  # another process was faster
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.rename(passing, path)  # a file server without hard links
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(passing)
    return read_regular(path, 32).decode("ascii", "replace")
