"""Opens files of a run's folder, which a job or another host may have replaced, and reads their lines."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from typing import BinaryIO


def regular(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file and nothing else, as an `opener` for `open`: a pipe in its place would block forever.

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


def append(path: str | os.PathLike[str], data: bytes) -> int:
    """Append to a regular file in one write, so that records of several processes do not mix; returns the byte count.

    They may be fewer, or none, if the disk is full or something else has replaced the file.
    """
    try:
        fd = regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            return os.write(fd, data)
        finally:
            os.close(fd)
    except OSError:
        return 0


def last_text(path: str | os.PathLike[str], most: int) -> str:
    """The text in the last `most` bytes of a regular file; "" if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def shared_token(path: str) -> str:
    """A random token stored in a private file, the same for every caller. Raises OSError."""
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


_LONG = re.compile(rb"\d{19}")


def _int(text: str) -> int:
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(text[:20])
    return int(text)


def records(lines: list[bytes]) -> list[dict[str, object]]:
    """The lines that are JSON objects; malformed ones, and those with integers of more than 64 bits, are left out."""
    found = []
    for line in lines:
        try:
            record = json.loads(line, parse_int=_int) if _LONG.search(line) else json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found
