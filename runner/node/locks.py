"""Names that one process of this machine can hold at a time, on no file system (homes are often shared)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import time
from typing import Any, Iterator

from .problem import Problem


def name_of(kind: str, folder: str) -> str:
    """A short name for something of this user's that belongs to a folder."""
    digest = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:24]
    return f"disttui-{kind}-{os.getuid()}-{digest}"


def socket_address(name: str) -> str:
    """Where a UNIX socket of this name is bound: in the abstract space, or in a private folder on macOS."""
    return "\0" + name if sys.platform == "linux" else os.path.join(_folder(), name)


def take(name: str) -> Any | None:
    """Take a name without waiting; close what is returned to give it back. None: somebody has it."""
    if sys.platform != "linux":
        return _take_file(name)
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(socket_address(name))
    except OSError:
        holder.close()
        return None
    return holder


@contextlib.contextmanager
def hold(kind: str, folder: str, timeout: float = 30.0) -> Iterator[None]:
    """Hold a folder's lock of one kind for a block. Raises Problem after `timeout` seconds."""
    name = name_of(kind, folder)
    deadline = time.monotonic() + timeout
    holder = take(name)
    while holder is None:
        if time.monotonic() > deadline:
            raise Problem(f"{folder}: another disttui holds its {kind} lock", "try again in a minute")
        time.sleep(0.005)
        holder = take(name)
    try:
        yield
    finally:
        holder.close()


def _folder() -> str:
    import tempfile

    path = os.path.join(tempfile.gettempdir(), f"disttui-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    info = os.lstat(path)
    if info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise Problem(f"{path} is open to others", "remove it")
    return path


def _take_file(name: str) -> Any | None:
    import fcntl

    file = open(os.path.join(_folder(), name + ".lock"), "w")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
