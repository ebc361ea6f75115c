"""A shipped zip as stored on a host: sealed with a hash, and verified each time before it is used.

The loader runs this file before the node program is available, so it imports nothing of ours.
"""

import hashlib
import os
import stat
from typing import Optional, Union

_SEAL = 64


def seal(data: bytes, digest: str) -> bytes:
    """Append a zip comment: a hash over the content and `digest`, the hash of the zip it was made from."""
    body = data[:-2] + _SEAL.to_bytes(2, "little")
    return body + _hash(body, digest)


def is_whole(path: str, digest: str) -> bool:
    """Whether `path` is a private file of this user with the content that was sealed with `digest`."""
    data = read(path)
    return data is not None and data[-_SEAL:] == _hash(memoryview(data)[:-_SEAL], digest)


def read(path: str) -> Optional[bytes]:
    """The content of a private file of this user, or None."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
                return None
            return file.read()
    except OSError:
        return None


def place(path: str, data: bytes) -> None:
    """Write a private file at `path` atomically, so that it is whole even after a crash. Raises OSError."""
    part = "%s.%d" % (path, os.getpid())
    if os.path.lexists(part):
        os.unlink(part)  # left by a process that was killed
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, path)
    except OSError:
        if os.path.lexists(part):
            os.unlink(part)
        raise


def _hash(body: Union[bytes, memoryview], digest: str) -> bytes:
    seen = hashlib.sha256(digest.encode())
    seen.update(body)  # joining them first would copy two megabytes for every viewer
    return seen.hexdigest().encode()
