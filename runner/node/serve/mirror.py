"""The mirror server: sends the files of a run directory by offset as they grow (docs/formats.md, "Mirror stream")."""

from __future__ import annotations

import ctypes
import itertools
import os
import select
import sys
import threading
import time
import zlib
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from ...protocol.limits import CHECKED, CHUNK
from ...protocol.names import HOST_FILE
from ...protocol.regular import regular
from ..journal import is_gone, read_json
from ..observe.log_limit import data_from

NAMES = (".jsonl", ".log", ".json", "launcher.ready")
PRIVATE = ("supervisor.json", "untagged.json")


class _MirroredFile:
    """One file of the run directory: how much of which generation has been sent."""

    def __init__(self, number: int, name: str, path: str) -> None:
        self.number = number
        self.name = name
        self.path = path
        self.generation = 0
        self.size = 0
        self.sent = 0
        self.last = b""
        """The last bytes sent: a file that was truncated and has grown beyond `sent` again differs there."""
        self.identity: Optional[Tuple[int, int]] = None
        self.announced = False

    @property
    def is_log(self) -> bool:
        return self.name.endswith(".log")


class Mirror:
    """Follows one run directory for one viewer.

    Args:
        have: The viewer's copies: name → [generation, length, CRC-32 of the last `CHECKED` bytes].
        tail: Start logs at most this many bytes before their end; None: at the end of the viewer's copy.
        tell: Called with a record of the stream.
        send: Called with a piece of a file: (file id, generation, offset, bytes).
        numbers: Yields the ids of files; None counts from 1.
        shared: Whether another host writes the files: sizes seen here may be outdated.
    """

    def __init__(
        self,
        folder: str,
        have: Dict[str, List[int]],
        tail: Optional[int],
        tell: Callable[[Dict[str, object]], None],
        send: Callable[[int, int, int, bytes], None],
        numbers: Optional[Iterator[int]] = None,
        shared: bool = False,
    ) -> None:
        self._folder = folder
        self._have = have
        self._tail = tail
        self._tell = tell
        self._send = send
        self._numbers = numbers or itertools.count(1)
        self._shared = shared
        self._files: Dict[str, _MirroredFile] = {}
        self._watch = FolderWatch()
        self._folders: List[str] = []
        self._behind = 0
        self._behind_at = 0.0
        self._exit_told = False

    def run(self, cancelled: threading.Event) -> None:
        """Send until the run has ended and everything is sent, or until cancelled."""
        try:
            caught_up = False
            while not cancelled.is_set():
                # Read before the sweep, so that the sweep finds everything that was written before exit.json.
                ended = os.path.isfile(os.path.join(self._folder, "exit.json"))
                self._look()
                more = self._sweep(ended, cancelled)
                self._tell_behind(ended)
                if more or cancelled.is_set():
                    continue
                if not caught_up:
                    caught_up = True
                    self._tell({"caught_up": True})
                if ended or self._is_gone():
                    self._tell({"ended": True} if ended else {"gone": True})
                    return
                self._watch.wait(0.25)
        finally:
            self._watch.close()

    def _is_gone(self) -> bool:
        begun = "spec.json" in self._files or "spec.json" in self._have
        return is_gone(os.path.join(self._folder, "spec.json") if begun else self._folder)

    def _look(self) -> None:
        """Find new files and folders."""
        for folder in self._find_folders():
            if folder not in self._folders:
                self._folders.append(folder)
                self._watch.add(folder)
            try:
                names = sorted(os.listdir(folder))
            except OSError:
                continue
            for base in names:
                path = os.path.join(folder, base)
                name = os.path.relpath(path, self._folder)
                ours = base.endswith(NAMES) and base not in PRIVATE and HOST_FILE.fullmatch(name)
                if ours and name not in self._files:
                    self._files[name] = _MirroredFile(next(self._numbers), name, path)

    def _find_folders(self) -> List[str]:
        try:
            attempts = [e.path for e in os.scandir(self._folder) if e.name.startswith("attempt-") and e.is_dir()]
        except OSError:
            return []
        return [self._folder, *sorted(attempts)]

    def _sweep(self, ended: bool, cancelled: threading.Event) -> bool:
        """Send at most one piece of every log; returns whether there may be more.

        The files that the run's state consists of are sent before every piece of a log: they must not wait for a flood.
        """
        records = [file for file in self._files.values() if not file.is_log and file.name != "exit.json"]
        logs = [file for file in self._files.values() if file.is_log]
        more = self._advance_all(records)
        for log in logs:
            if cancelled.is_set():
                return False
            if self._advance(log):
                self._advance_all(records)
                more = True
        # exit.json last: a mirror that has it has everything that was written before it.
        if ended and not more and "exit.json" in self._files:
            more = self._advance(self._files["exit.json"])
        return more

    def _advance_all(self, files: List[_MirroredFile]) -> bool:
        more = [self._advance(file) for file in files]
        return any(more)

    def _tell_behind(self, ended: bool) -> None:
        """Report how much of the logs is still to be sent, and an end whose file must wait for them."""
        behind = sum(max(0, file.size - file.sent) for file in self._files.values() if file.is_log)
        due = time.monotonic() - self._behind_at > 0.5  # seconds between two reports of how much is still to be sent
        if (behind and due) or (self._behind and not behind):
            self._behind, self._behind_at = behind, time.monotonic()
            self._tell({"behind": behind})
        if behind and ended and not self._exit_told:
            self._exit_told = True
            end = read_json(os.path.join(self._folder, "exit.json"), CHUNK)
            if end is not None:
                self._tell({"exit": end})

    def _advance(self, file: _MirroredFile) -> bool:
        try:
            seen = os.stat(file.path)
            file.size = seen.st_size
            same = seen.st_size == file.sent and (seen.st_dev, seen.st_ino) == file.identity
            if file.announced and same and not self._shared:
                return False
            handle = regular(file.path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            seen = os.fstat(handle)
            if not file.announced:
                self._begin(file, handle, seen)
            elif (seen.st_dev, seen.st_ino) != file.identity or seen.st_size < file.sent:
                self._announce(file, seen, file.generation + 1, 0)
            if seen.st_size <= file.sent:
                return False
            start = data_from(handle, file.sent)
            if start > file.sent:
                # The oldest part of a log that has exceeded its limit.
                self._announce(file, seen, file.generation, start)
            data = os.pread(handle, CHUNK, file.sent)
            # Checked after the read, to detect a file that was truncated and refilled just before it.
            if _changed(file, handle):
                self._announce(file, os.fstat(handle), file.generation + 1, 0)
                return True
            self._send(file.number, file.generation, file.sent, data)
            file.sent += len(data)
            file.last = (file.last + data)[-CHECKED:]
            return len(data) == CHUNK
        finally:
            os.close(handle)

    def _begin(self, file: _MirroredFile, handle: int, seen: os.stat_result) -> None:
        """Decide where to start: at the end of the viewer's copy if that is still a copy of this file."""
        held = self._have.get(file.name)
        if not held:
            start = max(0, seen.st_size - self._tail) if file.is_log and self._tail is not None else 0
            self._announce(file, seen, 0, start)
            return
        generation, length, checksum = held
        first = max(0, length - CHECKED)
        before = os.pread(handle, min(CHECKED, length), first)
        # A hole cannot be compared, but a file that was rewritten has none.
        same = zlib.crc32(before) == checksum or data_from(handle, first) > first
        if seen.st_size >= length and same:
            late = seen.st_size - self._tail if file.is_log and self._tail is not None else 0
            self._announce(file, seen, generation, max(length, late))
        else:
            self._announce(file, seen, generation + 1, 0)

    def _announce(self, file: _MirroredFile, seen: os.stat_result, generation: int, start: int) -> None:
        file.announced = True
        file.generation = generation
        file.sent = start
        file.last = b""
        file.identity = (seen.st_dev, seen.st_ino)
        self._tell(
            {
                "file": file.number,
                "name": file.name,
                "generation": generation,
                "size": seen.st_size,
                "start": start,
            }
        )


def _changed(file: _MirroredFile, handle: int) -> bool:
    first = file.sent - len(file.last)
    # A hole cannot be compared, but a file that was rewritten has none.
    return os.pread(handle, len(file.last), first) != file.last and data_from(handle, first) == first


class FolderWatch:
    """Watches folders for writes, new files and renames (inotify); polls where inotify is not possible."""

    def __init__(self) -> None:
        self._handle: Optional[int] = None
        if sys.platform == "linux":
            handle = int(ctypes.CDLL(None).inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            self._handle = handle if handle >= 0 else None

    def add(self, folder: str) -> None:
        wanted = 0x2 | 0x80 | 0x100  # IN_MODIFY, IN_MOVED_TO, IN_CREATE
        if (
            self._handle is not None
            and ctypes.CDLL(None).inotify_add_watch(self._handle, os.fsencode(folder), wanted) < 0
        ):
            self.close()

    def wait(self, limit: float) -> None:
        """Return when something has changed, or after `limit` seconds."""
        if self._handle is None:
            time.sleep(min(0.02, limit))  # seconds between polls
            return
        if select.select([self._handle], [], [], limit)[0]:
            time.sleep(0.002)  # seconds to collect a burst of writes, so that it wakes the caller only once
            try:
                os.read(self._handle, 65536)
            except BlockingIOError:
                pass

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
