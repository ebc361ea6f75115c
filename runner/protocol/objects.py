"""A private store of files named by their content, on hosts and on the viewer (docs/formats.md, "Code trees").

Nothing in it is trusted: content is checked against its name whenever it is used. So it needs no locks and no fsync,
and a crash costs at most a transfer. Several processes and hosts may share one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from functools import partial
from typing import BinaryIO, Callable, Collection, Iterable, Iterator, List, Optional, Set, Tuple, Union

from .limits import CHUNK
from .regular import shared_token
from .tree import HASH, Entry

LIMIT = 10 << 30
"""Bytes that a store may take; beyond that, the least recently used objects are removed."""
_LITTLE, _OFTEN = 16 << 20, 3600.0
"""Bytes that may be added, and seconds that may pass, before all objects are counted again."""
_STALE = 86400.0
"""Seconds after which an incomplete object counts as abandoned."""
_PIECE = 1 << 18
"""Bytes to read at a time: the system would have to clear the memory of larger pieces for each of them."""


class DamagedError(Exception):
    """Content does not have the expected hash."""


class Store:
    """Objects below a folder that only this user can write to.

    Args:
        folder: Created with mode 0700 if it is missing.
        brief: The store is used for one request: what the request has written, and so hashed, is not checked again.
    """

    def __init__(self, folder: str, *, brief: bool = False) -> None:
        self.folder = folder
        self._brief = brief
        self._written: Set[str] = set()
        self._added = 0
        self._parts = os.path.join(folder, "parts")
        os.makedirs(self._parts, 0o700, exist_ok=True)
        for path in (folder, self._parts):
            seen = os.lstat(path)
            if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
                raise OSError(errno.EPERM, "this is not your folder", path)
            if seen.st_mode & 0o077:
                os.chmod(path, 0o700)

    @property
    def name(self) -> str:
        """A random name, the same for all that share the store. Raises OSError."""
        return shared_token(os.path.join(self.folder, "name"))

    def has(self, name: str, size: int) -> bool:
        """Whether there is an object with this name and size; its content is checked when it is read."""
        try:
            seen = os.lstat(self._path(name))
        except OSError:
            return False
        return stat.S_ISREG(seen.st_mode) and seen.st_size == size and seen.st_uid == os.getuid()

    def open(self, name: str) -> BinaryIO:
        """Open an object for reading. Raises OSError."""
        return _open(self._path(name))

    def piece(self, name: str, offset: int, most: int) -> bytes:
        """Bytes of an object, even if it is still arriving; empty if these bytes have not arrived."""
        for path in (self._path(name), *_earlier(self._parts, name)):
            try:
                with _open(path) as file:
                    data = os.pread(file.fileno(), most, offset)
            except OSError:
                continue  # it does not exist, or is complete by now
            if data:
                return data
        return b""

    def copy(self, name: str, write: Callable[[bytes], object]) -> None:
        """Pass the content of an object to `write`, in pieces.

        Raises:
            DamagedError: The content did not match the name and was removed. What was written must not be used.
            OSError: The object cannot be read.
        """
        seen = None if name in self._written else hashlib.sha256()
        fd, left = self._use(name)
        try:
            while left and (data := os.read(fd, min(left, _PIECE))):  # for small files, a larger buffer costs more
                left -= len(data)
                if seen:
                    seen.update(data)
                write(data)
        finally:
            os.close(fd)
        if seen:
            self._check(name, seen.hexdigest())

    def clone(self, name: str, to: int) -> None:
        """Write an object to an empty file, open for reading as well. Raises as `copy`.

        Disks that can do so keep the content once until either file is changed.
        """
        fd, left = self._use(name)
        try:
            with contextlib.suppress(AttributeError, OSError):  # not on this system or disk
                while left and (done := os.copy_file_range(fd, to, left)):
                    left -= done
            while data := os.read(fd, _PIECE):
                _write(to, data)
        finally:
            os.close(fd)
        if name not in self._written:
            seen = hashlib.sha256()
            os.lseek(to, 0, os.SEEK_SET)
            while data := os.read(to, _PIECE):
                seen.update(data)
            self._check(name, seen.hexdigest())

    def _use(self, name: str) -> Tuple[int, int]:
        """Open an object; returns its descriptor and size. Raises OSError."""
        fd, status = _opened(self._path(name))
        if time.time() - status.st_mtime > 3600.0:  # within these seconds another use of an object is not recorded
            os.utime(fd)  # the time of its last use
        return fd, status.st_size

    def _check(self, name: str, found: str) -> None:
        if found != name:
            self.discard(name)
            raise DamagedError(name)

    def share(self, name: str, path: bytes) -> bool:
        """Link an object to a file; False if the disk does not support that. Raises DamagedError, OSError."""
        try:
            if name not in self._written:
                self.copy(name, len)
            os.link(os.fsencode(self._path(name)), path)
        except FileExistsError:
            raise
        except OSError:
            return False
        return True

    def adopt(self, path: str, sha256: str) -> bool:
        """Link a file with this hash into the store; False if the disk does not support that. Raises OSError."""
        seen = os.lstat(path)
        try:
            os.makedirs(os.path.dirname(self._path(sha256)), 0o700, exist_ok=True)
            if seen.st_uid == os.getuid():
                os.link(path, self._path(sha256))
        except OSError:
            pass  # it exists, the disk has no hard links, or it is another disk
        return self.has(sha256, seen.st_size)

    def discard(self, name: str) -> None:
        """Remove an object if it exists. Raises OSError."""
        _remove(self._path(name))

    def read(self, name: str, most: int) -> bytes:
        """The content of an object of at most `most` bytes. Raises DamagedError, or OSError."""
        pieces: List[bytes] = []

        def take(data: bytes) -> None:
            pieces.append(data)
            if sum(map(len, pieces)) > most:
                raise OSError(errno.EFBIG, "the object is too large", self._path(name))

        self.copy(name, take)
        return b"".join(pieces)

    def add(self, data: bytes) -> str:
        """Store content; returns its name. Raises OSError."""
        with self.writer() as writer:
            writer.write(data)
            return writer.done()

    def writer(self, name: str = "", offset: int = 0) -> Writer:
        """Write a new object.

        Args:
            name: The object's future name, if known: a partial object can then be continued later.
            offset: Bytes at its beginning to take from an earlier attempt, as counted by `begun`.

        Raises:
            OSError: The object cannot be written, or the earlier attempt no longer exists.
        """
        return Writer(self, self._parts, name, offset)

    def begun(self) -> Iterator[Tuple[str, int]]:
        """Names and bytes of objects whose transfer was interrupted."""
        for entry in _entries(self._parts):
            name = entry.name.partition(".")[0]
            try:
                seen = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # it is complete by now
            if HASH.fullmatch(name) and stat.S_ISREG(seen.st_mode):
                yield name, seen.st_size

    def tidy(self, keep: Collection[str]) -> None:
        """Prune, unless little was added since the last full count, which takes as long as writing a tree."""
        noted = os.path.join(self.folder, "counted")
        try:
            recent = 0.0 <= time.time() - os.lstat(noted).st_mtime < _OFTEN
        except FileNotFoundError:
            recent = False
        if not recent or self._added > _LITTLE:
            self.prune(keep)
            with open(noted, "wb"):
                os.utime(noted)

    def prune(self, keep: Collection[str] = (), limit: int = LIMIT) -> int:
        """Remove the least recently used objects until the rest fits; returns the bytes that remain.

        Args:
            keep: Objects that stay.
        """
        now = time.time()
        found: List[Tuple[float, int, str, str]] = []
        for folder in _entries(self.folder):
            for one in _entries(folder.path) if folder.is_dir(follow_symlinks=False) else ():
                try:
                    seen = one.stat(follow_symlinks=False)
                except OSError:
                    continue
                if folder.path == self._parts:
                    if now - seen.st_mtime > _STALE:
                        _remove(one.path)
                elif seen.st_nlink == 1:  # otherwise data shares it
                    found.append((seen.st_mtime, seen.st_size, folder.name + one.name, one.path))
        total = sum(one[1] for one in found)
        for _, size, name, full in sorted(found):
            if total <= limit:
                break
            if name not in keep:
                _remove(full)
                total -= size
        return total

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name[:2]}/{name[2:]}"

    def _place(self, part: str, name: str) -> None:
        path = self._path(name)
        try:
            os.rename(part, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            try:
                os.rename(part, path)
            except FileNotFoundError:
                if not os.path.exists(path):  # otherwise another process was faster, and has removed all parts
                    raise


class Writer:
    """Writes one object. As a context manager it removes an incomplete one at the end unless it has a name."""

    def __init__(self, store: Store, parts: str, name: str, offset: int) -> None:
        self._store, self._name = store, name
        self._seen = hashlib.sha256()
        self.new = False
        """Whether the store had no such object before; known once it is done."""
        self._earlier = _earlier(parts, name) if name else []
        self._path = os.path.join(parts, "%s.%s" % (name or "new", os.urandom(8).hex()))
        self._file: Optional[BinaryIO] = None
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "wb", CHUNK)  # those who wait for it should see soon what has arrived
        if offset:
            try:
                self._continue(offset)
            except BaseException:
                self.close(remove=True)
                raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(remove=not self._name)

    def write(self, data: Union[bytes, memoryview]) -> None:
        """Append. Raises OSError."""
        assert self._file is not None
        self._seen.update(data)
        self._store._added += self._file.write(data)

    def done(self) -> str:
        """Make the object visible; returns its name. Raises DamagedError for unexpected content, OSError."""
        found = self._seen.hexdigest()
        try:
            if self._file is not None:
                self._file.close()
                self._file = None
        except OSError:
            _remove(self._path)
            raise
        if self._name and found != self._name:
            for path in (self._path, *self._earlier):
                _remove(path)
            raise DamagedError(self._name)
        self.new = not os.path.lexists(self._store._path(found))
        self._store._place(self._path, found)
        if self._store._brief:
            self._store._written.add(found)
        for path in self._earlier:
            _remove(path)
        return found

    def close(self, *, remove: bool) -> None:
        """Close an incomplete object; without `remove`, it remains for a later attempt."""
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError:
            pass  # the disk is full: what was written remains
        self._file = None
        if remove:
            _remove(self._path)

    def _continue(self, offset: int) -> None:
        """Begin with the data of an earlier attempt; its process may still run, so its file is copied, not moved."""
        for path in self._earlier:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size < offset:
                    continue
                while offset and (data := file.read(min(_PIECE, offset))):
                    self.write(data)
                    offset -= len(data)
                return
        raise OSError(errno.ENOENT, "the beginning of this object was removed", self._path)


def write_tree(store: Store, entries: Iterable[Entry], top: bytes, *, share: bool = False) -> None:
    """Write a tree below an empty folder.

    Args:
        share: Link files to the store if the disk supports that, so that they take no additional space.

    Raises:
        DamagedError: The store lacks the content of a file; what was written must not be used.
        FileExistsError: A name clashes with another one on this disk.
        OSError: The tree cannot be written.
    """
    made, todo = {b""}, list(entries)
    for entry in todo:
        _make_folders(top, entry.path.rpartition(b"/")[0], made)
    left, large = iter(todo), sum(one.size for one in todo) > CHUNK * len(todo)

    def write_some() -> None:
        for entry in left:
            _write_entry(store, entry, top, share)

    if not large:
        write_some()  # threads would wait for Python's lock
        return
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait  # noqa: PLC0415 - costs 10 ms

    many = os.cpu_count() or 1
    with ThreadPoolExecutor(many) as pool:
        parts = [pool.submit(write_some) for _ in range(many)]
        try:
            for part in wait(parts, return_when=FIRST_EXCEPTION).done:
                part.result()
        finally:
            todo.clear()  # after an error, the rest is not written


def _write_entry(store: Store, entry: Entry, top: bytes, share: bool) -> None:
    path = b"%s/%s" % (top, entry.path)
    if entry.kind == "l":
        os.symlink(entry.target, path)
        return
    if share and entry.kind == "f" and store.share(entry.value, path):
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o755 if entry.kind == "x" else 0o644)
    try:
        if entry.size < CHUNK:
            store.copy(entry.value, partial(_write, fd))
        else:
            store.clone(entry.value, fd)
    except FileNotFoundError:
        raise DamagedError(entry.value) from None
    finally:
        os.close(fd)


def _make_folders(top: bytes, folder: bytes, made: Set[bytes]) -> None:
    at = 0
    while folder not in made:
        at = folder.find(b"/", at + 1)
        above = folder if at < 0 else folder[:at]
        if above in made:
            continue
        try:
            os.mkdir(os.path.join(top, above), 0o700)
        except FileExistsError:
            # A disk may treat two names as one: below a link, files would end up elsewhere.
            if not stat.S_ISDIR(os.lstat(os.path.join(top, above)).st_mode):
                raise
        made.add(above)


def _entries(folder: str) -> List[os.DirEntry[str]]:
    """The entries of a folder; empty if it cannot be listed."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _open(path: str) -> BinaryIO:
    return os.fdopen(_opened(path)[0], "rb", 0)


def _opened(path: str) -> Tuple[int, os.stat_result]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.getuid():
        os.close(fd)
        raise OSError(errno.EPERM, "this is not your object", path)
    return fd, seen


def _write(fd: int, data: bytes) -> None:
    """Write all data: a nearly full disk may accept only a part of the bytes without an error."""
    while data:
        data = data[os.write(fd, data) :]


def _earlier(parts: str, name: str) -> List[str]:
    return [os.path.join(parts, one) for one in os.listdir(parts) if one.startswith(name + ".")]


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
