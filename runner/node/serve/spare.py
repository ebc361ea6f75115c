"""Keeps one more copy of the newest code, so that the next run takes it and only what has changed since is written.

The copy is the folder `.spare/TREE.STATE` below that of the runs. Only this user can enter `.spare`, and a run takes
the copy by renaming it: no two runs share a file. Unlike an object of the store, its content is not hashed again. STATE
is a digest of the inode, mode, size and last change of all that is in it: a copy that anything has changed since it was
complete is not used, nor is one from before the host's last boot, in which files may have lost their end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from typing import Iterable, Optional, Sequence, Set

from ...protocol import tree
from ...protocol.names import WHOLE
from ...protocol.objects import DamagedError, Store, write_tree
from .. import folders, locks, procs
from ..disk import room

_NAME = ".spare"
WORTH = 1 << 14
"""Bytes of the smallest manifest, of about 200 files, for which a spare is worth it."""
_MOST, _LARGEST = 20_000, 64 << 20
"""Most files and bytes of a spare."""
_FREE = 20
"""A spare is made only if the disk has room for so many."""


def take(store: Store, run_dir: str, name: str, part: str) -> Optional[Set[bytes]]:
    """Move the spare to `part` and remove what is not in the tree `name`; returns the paths that must still be written.

    Returns None without a spare, or if the tree has little in common with it; then there is nothing at `part`.
    """
    folder = os.path.join(run_dir, _NAME)
    try:
        for found in [] if _weak(folder) else os.listdir(folder):
            other, _, state = found.partition(".")
            if not tree.HASH.fullmatch(other):
                continue
            before, after = (set(store.read(one, tree.MOST_BYTES).split(b"\0")) for one in (other, name))
            gone, new = before - after, after - before
            if len(gone) + len(new) > len(after) // 2:
                continue
            os.rename(os.path.join(folder, found), part)
            if _state(part) == state:
                _remove(os.fsencode(part), map(_path, gone))
                os.utime(part)  # the copy is new: old ones of runs that never started are removed
                return set(map(_path, new))
            shutil.rmtree(part)
    except (OSError, DamagedError):
        shutil.rmtree(part, ignore_errors=True)
    return None


def make(store: Store, run_dir: str, name: str, target: str) -> None:
    """Replace the spare by one of the tree `name`, whose newest copy is at `target`; if that costs much, by none."""
    folder = os.path.join(run_dir, _NAME)
    with contextlib.suppress(OSError, DamagedError, ValueError):
        entries = tree.decode(store.read(name, tree.MOST_BYTES))
        size, free = sum(one.size for one in entries), room(run_dir)
        worth = len(entries) <= _MOST and size <= _LARGEST and size * _FREE <= free.free
        worth = worth and (not free.inodes_total or len(entries) * _FREE <= free.inodes_free)
        if worth and os.lstat(target).st_dev == os.stat(run_dir).st_dev and not locks.is_remote(run_dir):
            os.makedirs(folder, 0o700, exist_ok=True)
        else:
            entries = ()
        lock = None if _weak(folder) else locks.take("spare", folder)
        if lock:
            try:
                _replace(store, folder, name, entries)
            finally:
                lock.close()


def leave(run_dir: str) -> None:
    """Remove the spare of a folder in which no run is left."""
    with contextlib.suppress(OSError):
        if not any(WHOLE.fullmatch(name) for name in os.listdir(run_dir)):
            shutil.rmtree(os.path.join(run_dir, _NAME))


def _replace(store: Store, folder: str, name: str, entries: Sequence[tree.Entry]) -> None:
    part = os.path.join(folder, "part")
    shutil.rmtree(part, ignore_errors=True)  # its maker was interrupted: this process has the lock
    for found in os.listdir(folder):
        if found.startswith(name):
            return
        if not found.startswith("."):
            with contextlib.suppress(FileNotFoundError):  # a run has just taken it
                os.rename(os.path.join(folder, found), part)  # first, since a run must not take a half of it
                shutil.rmtree(part)
    if entries:
        try:
            os.mkdir(part, 0o700)
            write_tree(store, entries, os.fsencode(part))
            os.rename(part, os.path.join(folder, f"{name}.{_state(part)}"))
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _weak(folder: str) -> bool:
    """Whether others may have put something into a folder. Raises OSError if it does not exist."""
    return bool(folders.foreign(folder) or folders.weakness(folder))


def _state(top: str) -> str:
    """A digest of all that is in a folder, as described above."""
    seen, todo = [procs.boot_id()], [top]
    while todo:
        folder = todo.pop()
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in sorted(os.listdir(fd)):
                at = os.stat(name, dir_fd=fd, follow_symlinks=False)
                seen.append(f"/{name}/{at.st_ino} {at.st_mode} {at.st_size} {at.st_ctime_ns}")
                if stat.S_ISDIR(at.st_mode):
                    todo.append(os.path.join(folder, name))
        finally:
            os.close(fd)
    return tree.digest(os.fsencode("".join(seen)))


def _path(line: bytes) -> bytes:
    """The path in a line of a manifest."""
    return line.split(b" ", 3)[3]


def _remove(top: bytes, paths: Iterable[bytes]) -> None:
    """Remove files of a copy, and the folders that are empty then."""
    for path in paths:
        os.unlink(os.path.join(top, path))
        with contextlib.suppress(OSError):
            while path := os.path.dirname(path):
                os.rmdir(os.path.join(top, path))
