"""The local mirror of a run: the same files as on the hosts, byte for byte, in one folder."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from disttui.runner import private
from disttui.runner.errors import DisttuiError
from disttui.runner.paths import PathError, inside
from disttui.runner.protocol.limits import CHECKED, MOST_FILES
from disttui.runner.protocol.names import VIEWER_FILE
from disttui.runner.protocol.regular import open_regular, read_regular, regular
from disttui.runner.untrusted.records import json_object, whole
from disttui.runner.user.folders import user_folder

KEPT: Final = ".mirror.json"
"""The file that records which generations the mirror holds, and from which offset: name → [generation, start]."""
PIECE = 64 * 1024
_LONGEST_NAME = 200
_LONGEST_FILE = 1 << 43
"""Largest file in bytes: a size that every supported file system can hold."""
MOST_OLD = 100
"""Times that a file may be rewritten before its older copies are no longer kept."""
_FEW = 256
"""The first changes, each of which is recorded immediately."""
_NOTED = 0.2
"""Seconds between two writes of the record after that: a host may announce many files."""
_LEFT = 256 << 20
"""Bytes of the disk, or a twentieth of a small one, that a flood of logs leaves to other programs."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that more free space on the disk would solve."""


def mirrors_folder(environ: Mapping[str, str]) -> Path:
    """The folder of all mirrors: `$XDG_DATA_HOME/disttui/runs`, or where the system keeps a user's data."""
    return user_folder("data", environ) / "runs"


def host_folder(folder: Path, node: int) -> Path:
    """The folder of one host in the mirror of a run. Raises PathError if a link leads out of it."""
    return inside(folder, str(node))


class HostStore:
    """The mirrored files of one host of one run.

    A log whose beginning has not been fetched is a sparse file: every byte is at the same offset as on the host.
    One thread may write new bytes while another fills in earlier ones.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        private.make_folder(folder)
        self._names: dict[int, str] = {}
        self._open: dict[str, BinaryIO] = {}
        self._held: dict[str, list[int]] = held(folder)
        self._lock = threading.RLock()
        self._notes = 0
        self._noted = 0.0
        self._to_note = False

    def have(self) -> dict[str, list[int]]:
        """What the node program needs to resume: name → [generation, length, CRC-32 of the last bytes]."""
        answer = {}
        for name, (generation, start, length) in self._held.items():
            before = min(CHECKED, length)
            if length - start < before:
                continue
            try:
                with open_regular(inside(self.folder, name)) as file:
                    file.seek(length - before)
                    answer[name] = [generation, length, zlib.crc32(file.read(before))]
            except (OSError, PathError):
                continue
        return answer

    def files(self) -> dict[str, tuple[int, int]]:
        """The mirrored range of every file: name → (first offset, end)."""
        with self._lock:
            return {name: (start, length) for name, (_, start, length) in self._held.items()}

    def read(self, name: str, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the mirrored bytes of a file from `start` on, as (offset, piece)."""
        first, end = self.files().get(name, (0, 0))
        if max(first, start) >= end:
            return  # a file that is still empty has no copy yet
        with open_regular(inside(self.folder, name)) as file:
            offset = file.seek(max(first, start))
            while offset < end and (data := file.read(min(PIECE, end - offset))):
                yield offset, data
                offset += len(data)

    def announce(self, event: Mapping[str, object]) -> str | None:
        """Process a file announcement; return the name if a new generation rewrites the file."""
        name = _safe_name(event.get("name"))
        file, generation = whole(event.get("file")), whole(event.get("generation"))
        start = whole(event.get("start"), _LONGEST_FILE)
        if file is None or generation is None or start is None:
            raise ValueError(f"a host announced {name} with invalid numbers")
        with self._lock:
            if name not in self._held and len(self._held) >= MOST_FILES:
                raise ValueError(f"a host announced more than {MOST_FILES:,} files of one run")
            self._names[file] = name
            return self._begin(name, generation, start)

    def _begin(self, name: str, generation: int, start: int) -> str | None:
        known = self._held.get(name)
        if known and known[0] == generation and known[2] == start:
            return None
        if known and known[0] == generation and start > known[2]:
            # The host has freed the part between (see launch.log_limit), or sends only the end.
            known[1] = known[2] = start
            path = self._path(name)
            if path.exists() and path.stat().st_nlink > 1:
                # Another mirror has this file as well, in which the part between still counts.
                self._close(name)
                path.unlink()
            self._note()
            return name
        self._close(name)
        path = self._path(name)
        if path.exists() and generation >= MOST_OLD:
            path.unlink()
        elif path.exists():
            # The copy of a truncated file stays readable next to the new one.
            path.rename(inside(self.folder, f"{name}~{known[0] if known else 'old'}"))
        self._held[name] = [generation, start, start]
        self._note()
        return name

    def write(self, file: int, offset: int, data: bytes | memoryview) -> str | None:
        """Append a piece to its file; return the file's name, or None for a piece that is already mirrored."""
        name = self._names.get(file, "")
        with self._lock:
            if name not in self._held:
                raise ValueError("a host sent part of an unannounced file")
            known = self._held[name]
            if offset != known[2]:
                return None
            self._write(name, offset, data)
            known[2] += len(data)
        return name

    def put(self, name: str, offset: int, data: bytes) -> None:
        """Write a piece before the first mirrored byte. It counts as mirrored after the call of `fill`."""
        with self._lock:
            if offset + len(data) <= self._held[name][1]:
                self._write(name, offset, data)

    def fill(self, name: str, before: int, start: int) -> None:
        """Record that `put` has written the range from `start` to `before`, the first mirrored byte so far."""
        with self._lock:
            known = self._held[name]
            if known[1] == before:  # otherwise the file has been rewritten since
                known[1] = start
                self._note()

    def settle(self) -> None:
        """Write pending records of what is mirrored; called regularly, and at the end."""
        with self._lock:
            if self._to_note:
                self._noted = 0.0
                self._note()

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self.settle()
            for name in list(self._open):
                self._close(name)

    def _write(self, name: str, offset: int, data: bytes | memoryview) -> None:
        try:
            _write_at(self._handle(name), offset, data)
        except OSError as error:
            raise self._cannot(name, error) from None

    def _handle(self, name: str) -> BinaryIO:
        handle = self._open.get(name)
        if handle is None:
            path = self._path(name)
            path.parent.mkdir(exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            handle = os.fdopen(regular(path, flags), "r+b", buffering=0)
            self._open[name] = handle
        return handle

    def _path(self, name: str) -> Path:
        try:
            return inside(self.folder, name)
        except PathError:
            if os.access(self.folder, os.X_OK):
                raise
            # An error of this machine, not of the host's: as after `sudo disttui`.
            raise self._cannot(name, PermissionError(errno.EACCES, os.strerror(errno.EACCES))) from None

    def _cannot(self, name: str, error: OSError) -> DisttuiError:
        if error.errno == errno.ENOENT:
            what = f"{self.folder}: the run's local files were removed"
            return DisttuiError(what, "Attach again to fetch them from the hosts.")
        cure = "Free space for the run's logs" if error.errno in NO_ROOM else "Make the folder writable"
        return DisttuiError(f"{self.folder}/{name}: {error.strerror}", f"{cure}, and attach again.")

    def _note(self) -> None:
        """Record what is mirrored. Lengths are those of the files, so that a killed viewer loses nothing."""
        self._notes += 1
        self._to_note = self._notes > _FEW and time.monotonic() - self._noted < _NOTED
        if self._to_note:
            return
        self._noted = time.monotonic()
        with suppress(OSError):
            private.replace(self.folder / KEPT, json.dumps({name: known[:2] for name, known in self._held.items()}))

    def _close(self, name: str) -> None:
        handle = self._open.pop(name, None)
        if handle:
            handle.close()


def held(folder: Path) -> dict[str, list[int]]:
    """The content of a host's mirror: name → [generation, start, length]. Malformed entries are left out."""
    found: dict[str, list[int]] = {}
    try:
        noted = json_object(read_regular(folder / KEPT)) or {}
        for name, (generation, start) in noted.items():
            path = inside(folder, _safe_name(name))
            # An announced file that is still empty has no copy yet.
            length = path.stat().st_size if path.exists() else int(start)
            if 0 <= int(start) <= length:
                found[name] = [int(generation), int(start), length]
    except (OSError, ValueError, TypeError, AttributeError):
        return found
    return found


def lend(source: Path, target: Path) -> None:
    """Begin a host's mirror with the files of another one, by hard links; does nothing where a disk has none.

    Viewers may write to both at once, since they append the same bytes at the same offsets. A viewer that leaves a gap
    or receives a new generation continues in a separate file.
    """
    with suppress(OSError, ValueError, PathError):
        noted = read_regular(source / KEPT)  # first: it must name no file that is not linked
        for name in held(source):
            path = inside(target, name)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # it is still empty
                os.link(inside(source, name), path, follow_symlinks=False)
        private.replace(target / KEPT, noted.decode())


def _write_at(handle: BinaryIO, offset: int, data: bytes | memoryview) -> None:
    disk = os.fstatvfs(handle.fileno())
    size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    if size and free - len(data) < min(_LEFT, size // 20):  # some file systems do not report their size
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if os.pwrite(handle.fileno(), data, offset) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _safe_name(name: Any) -> str:
    """The checked name of a mirrored file: not one of the viewer's own files, and inside its folder."""
    if not isinstance(name, str) or not VIEWER_FILE.fullmatch(name):
        raise PathError(f"a host announced a file named {str(name)[:_LONGEST_NAME]!r}")
    return name
