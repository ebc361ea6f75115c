"""What a viewer may fetch of a run besides the mirror: any byte of a run's file, its checkpoints and results."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from typing import Any, Callable

from ...protocol.limits import CHUNK, READ_LIMIT
from ..observe.log_limit import data_from
from ..problem import Problem

_FILES = 20000
_DEPTH = 16

Send = Callable[[int, int, int, bytes], None]


def read(folder: str, request: dict[str, Any], send: Send, cancelled: threading.Event) -> dict[str, Any]:
    """Send `length` bytes of a file from `offset` on; fewer where it ends, none of holes. Raises Problem or OSError."""
    offset, length = int(request["offset"]), int(request["length"])
    if not 0 <= length <= READ_LIMIT or offset < 0:
        raise Problem("%d bytes from %d on cannot be read at once" % (length, offset))
    fd = _open(folder, str(request["name"]))
    try:
        end = offset + length
        while not cancelled.is_set() and (offset := data_from(fd, offset)) < end:
            data = os.pread(fd, min(CHUNK, end - offset), offset)
            if not data:
                break
            send(0, 0, offset, data)
            offset += len(data)
    finally:
        os.close(fd)
    return {"end": offset}


def files(run_folder: str) -> dict[str, Any]:
    """What can be pulled of a run: everything in its folder but the hosts' own folders."""
    found = []
    for path, folders, names in os.walk(run_folder):
        inside = os.path.relpath(path, run_folder)
        if inside == ".":
            folders[:] = [name for name in folders if not name.isdigit()]
        if inside.count(os.sep) >= _DEPTH:
            del folders[:]
        for name in sorted(names):
            seen = os.lstat(os.path.join(path, name))
            if stat.S_ISREG(seen.st_mode):
                found.append({"name": os.path.normpath(os.path.join(inside, name)), "size": seen.st_size,
                              "mtime": seen.st_mtime})  # fmt: skip
            if len(found) > _FILES:
                raise Problem("%s holds more than %d files" % (run_folder, _FILES), "copy them by hand")
    return {"files": found}


def fetch(run_folder: str, request: dict[str, Any], send: Send, cancelled: threading.Event) -> dict[str, Any]:
    """Send a file from `offset` to its end. The answer has the size and the SHA-256 of the whole."""
    offset = int(request["offset"])
    fd = _open(run_folder, str(request["name"]))
    digest = hashlib.sha256()
    at = 0
    try:
        while not cancelled.is_set():
            data = os.pread(fd, CHUNK if at >= offset else min(CHUNK, offset - at), at)
            if not data:
                break
            digest.update(data)
            if at >= offset:
                send(0, 0, at, data)
            at += len(data)
    finally:
        os.close(fd)
    return {"size": at, "sha256": digest.hexdigest()}


def _open(base: str, name: str) -> int:
    """Open a file under `base` for reading; no part of the way may be a link. Raises Problem or OSError."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Problem("%r is no file of a run" % name)
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        kind = os.O_NONBLOCK if last else os.O_DIRECTORY
        try:
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=fd)
        except OSError as error:
            raise Problem("%s: %s" % (os.path.join(base, name), error.strerror)) from None
        finally:
            os.close(fd)
        fd = inner
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Problem("%s is no file" % os.path.join(base, name))
    return fd
