"""Exclusive locks of a run's folder: flock on a file that only this user can open.

The file is in the run's folder. If that is on a file server, whose locks are slow and may hang, or cannot be locked, it
is on this machine, under a name derived from a secret in the run's folder. A lock ends with the process that holds it.
The holder may remove its file: a process that has locked one checks that the name still refers to it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
import time
from typing import Iterator

from ..protocol.regular import shared_token
from . import procs
from .disk import read_text
from .problem import Problem

_NAME = ".locks"
_BASES = ("/dev/shm", "/tmp", "/var/tmp")
_REMOTE = {
    0x6969: "nfs", 0xFF534D42: "cifs", 0xFE534D42: "smb2", 0x517B: "smb", 0x5346414F: "afs", 0x6B414653: "kafs",
    0x73757245: "coda", 0x0BD00BD0: "lustre", 0x47504653: "gpfs", 0x19830326: "beegfs", 0x00C36400: "ceph",
    0x01021997: "9p", 0x65735546: "fuse", 0x7461636F: "ocfs2", 0x01161970: "gfs2", 0xAAD7AAEA: "panfs",
}  # fmt: skip
"""Types of file systems (statfs(2)) that several machines may share."""
_NO_LOCK_HERE = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR,
                 errno.ENXIO, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # fmt: skip


class LockHeld(Problem):
    """Another process holds the lock and did not release it in time."""


class Lock:
    """A lock that is held until `close`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)


def take(kind: str, folder: str) -> Lock | None:
    """Take a lock of a run's folder without waiting; None if another process holds it.

    Raises OSError if the folder does not exist or no file can be locked anywhere.
    """
    problem: OSError | None = None
    for path in _places(kind, folder):
        try:
            fd = _open(path)
        except OSError as error:
            if error.errno not in _NO_LOCK_HERE:
                raise
            problem = error
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                return Lock(fd)
        except BlockingIOError:
            pass
        except OSError as error:
            problem = error
            os.close(fd)
            if error.errno not in _NO_LOCK_HERE:
                raise
            continue
        os.close(fd)
        return None
    raise problem or OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), folder)


@contextlib.contextmanager
def hold(kind: str, folder: str, timeout: float = 30.0) -> Iterator[None]:
    """Hold a folder's lock of one kind for a block. Raises LockHeld after `timeout` seconds, and OSError as `take`."""
    deadline = time.monotonic() + timeout
    lock = take(kind, folder)
    while lock is None:
        if time.monotonic() > deadline:
            raise LockHeld(f"{folder}: {holder(kind, folder)} holds its {kind} lock", "try again in a minute")
        time.sleep(0.005)
        lock = take(kind, folder)
    try:
        yield
    finally:
        lock.close()


def holder(kind: str, folder: str) -> str:
    """A description of the process that holds a lock."""
    for path in _places(kind, folder):
        pid = _holder(path)
        if pid:
            return f"process {pid} ({procs.command(pid)[:100]})"
    return "another process of disttui"


def forget(folder: str) -> None:
    """Remove the lock files that lie outside of a folder that is about to be removed. Raises OSError."""
    if not os.path.exists(os.path.join(folder, _NAME)):
        return
    for kind in ("start", "run"):
        for path in _places(kind, folder):
            if os.path.dirname(path) in _BASES:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


def _places(kind: str, folder: str) -> Iterator[str]:
    """Possible paths of a lock's file, best first."""
    if not is_remote(folder):
        yield os.path.join(folder, f".{kind}.lock")
    token = shared_token(os.path.join(folder, _NAME))
    for base in _BASES:
        try:
            mode = os.stat(base).st_mode
        except OSError:
            continue
        if mode & stat.S_ISVTX or not mode & stat.S_IWOTH:
            yield os.path.join(base, f"disttui-{token}-{kind}.lock")


def _open(path: str) -> int:
    """Open or create a lock's file. Raises OSError, EACCES if others could open it or have created it."""
    # Opening a FIFO or a device in its place must not block.
    fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        os.close(fd)
        raise OSError(errno.EACCES, "another user created it", path)
    return fd


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def is_remote(folder: str) -> bool:
    """Whether a folder is on a file system that several machines may share."""
    if sys.platform != "linux":
        return False
    import ctypes

    answer = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).statfs(os.fsencode(folder), answer):
        return False
    return ctypes.c_long.from_buffer(answer).value & 0xFFFFFFFF in _REMOTE


def _holder(path: str) -> int:
    """The pid that /proc/locks shows for a file, 0 if none is visible."""
    try:
        inode = str(os.lstat(path).st_ino)
    except OSError:
        return 0
    rows = [line.split() for line in read_text("/proc/locks").splitlines()]
    found = [row[4] for row in rows if row[1] == "FLOCK" and row[5].rpartition(":")[2] == inode]
    return max(0, int(found[0])) if found else 0
