"""Writes a run's files so that neither a crash nor a full disk leaves half a line."""

from __future__ import annotations

import json
import os
import stat
import time
from typing import TYPE_CHECKING, Any, Mapping

from ..protocol.regular import open_regular, read_regular, records, regular
from . import parcel

if TYPE_CHECKING:
    from ..protocol.events import Level, Note
    from ..protocol.files import Exit

_EXIT_ROOM = "exit.room"


class Journal:
    """An append-only file of JSON lines, one write() each; while the disk is full, lines wait in memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None
        self._waiting: list[bytes] = []

    def add(self, record: Mapping[str, object]) -> None:
        """Append a record. Never raises OSError: a failed write is tried again later."""
        self._waiting.append(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        # The first record may be half written and the last are the newest: records between them are dropped.
        del self._waiting[1 : max(1, len(self._waiting) - 2000)]
        self.flush()

    def flush(self) -> None:
        """Write the waiting records, as many as the disk takes."""
        try:
            if self._fd is None:
                self._fd = regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            while self._waiting:
                done = os.write(self._fd, self._waiting[0])
                if done < len(self._waiting[0]):
                    self._waiting[0] = self._waiting[0][done:]
                    return
                self._waiting.pop(0)
        except OSError:
            pass


def stamp() -> float:
    """The time to stamp an event with."""
    return round(time.time(), 6)


def note(text: str, level: Level = "warning") -> Note:
    """An event of kind `note`, stamped now."""
    return {"t": stamp(), "e": "note", "level": level, "text": text}


def write_json(path: str, data: Any) -> None:
    """Replace a file atomically with `data` as JSON, readable by its owner only. Raises OSError."""
    parcel.place(path, json.dumps(data, separators=(",", ":")).encode())


def read_json(path: str, most: int = 8 << 20) -> Any:
    """The content of a JSON file; None if it is missing, malformed, not a regular file or too large to be ours."""
    try:
        return json.loads(read_regular(path, most))
    except (OSError, ValueError, RecursionError):
        return None


def read_object(path: str) -> dict[str, object]:
    """The JSON object in a file; empty if `read_json` finds none. The job may have written anything there."""
    found = read_json(path)
    return found if isinstance(found, dict) else {}


def attempts(folder: str) -> list[int]:
    """The numbers of the attempts that have a folder in a run directory, the newest first. Raises OSError."""
    names = [name[8:] for name in os.listdir(folder) if name.startswith("attempt-")]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def is_gone(path: str) -> bool:
    """Whether nothing exists at `path`; a file that cannot be examined is not gone."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def prepare_exit(folder: str) -> None:
    """Reserve disk space for exit.json, so that a full disk cannot keep a run from ending. Raises OSError."""
    path = os.path.join(folder, _EXIT_ROOM)
    fd = regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(fd, b" " * (64 * 1024))
    finally:
        os.close(fd)


def write_exit(folder: str, data: Exit) -> None:
    """Write exit.json, the last file of a run, into the reserved space. Raises OSError."""
    path, last = os.path.join(folder, _EXIT_ROOM), os.path.join(folder, "exit.json")
    _make_way(path)
    _make_way(last)
    body = json.dumps({"t": round(time.time(), 6), **data}, separators=(",", ":")).encode()
    fd = regular(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(fd, body)
        os.ftruncate(fd, len(body))
    finally:
        os.close(fd)
    os.rename(path, last)


def _make_way(path: str) -> None:
    """Remove whatever is not a file: the supervisor could not replace a folder that its job has put there.

    Raises OSError.
    """
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(kind):
        os.rename(path, f"{path}.{os.urandom(4).hex()}")  # it may hold anything
    elif not stat.S_ISREG(kind):
        os.unlink(path)


class Tail:
    """Reads the complete lines that another process appends to a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[bytes]:
        """The lines completed since the last call (1 MiB at most)."""
        try:
            if os.stat(self._path).st_size <= self._offset:
                return []
            with open_regular(self._path) as file:
                file.seek(self._offset)
                data = file.read(1 << 20)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        # We write no line longer than the limit: skip it instead of stopping there forever.
        self._offset += end if end else (len(data) if len(data) == 1 << 20 else 0)
        return data[:end].splitlines()

    def records(self) -> list[dict[str, object]]:
        """The lines that are JSON objects."""
        return records(self.lines())
