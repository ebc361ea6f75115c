"""Finds the metrics files that belong to this attempt, and reads what is new in them.

A file belongs to it in three cases:

* A rank or one of its descendants has it open for writing.
* It is below the job's folder, and its name contains this host, the pid of such a process and a time since the attempt
  began, as in tensorboard's files, which are open only for moments.
* It is a Lightning table, whose name contains neither and which is open only for moments: it is new below the job's
  folder since the attempt began, this is the host of rank 0, and no other training of this user works in the folder.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import stat
import time
from typing import Dict, Iterator, List, Mapping, NamedTuple, Set, Tuple

from .. import procs
from .scalar_formats import EVENTS, MalformedFileError, Sample, ScalarFile, decoder

_EVERY = (3.0, 15.0)
"""Seconds between two searches, in the first minute and later."""
_MOST_FILES = 16
"""Most metrics files that are read on one host."""
_PATIENCE = 0.1
"""Seconds that a search may take: it delays heartbeats."""
# Time, host and process, as in the names that tensorboard/summary/writer/event_file_writer.py makes.
_EVENTS = re.compile(re.escape(EVENTS) + r"(\d{1,12})\.(.{1,255})\.(\d{1,10})\.\d{1,10}(?:\.v2)?\Z")
_WRITES = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)


class _Lying(NamedTuple):
    """Files in the job's folder."""

    named: Set[str]
    """Event files whose name shows which process created them."""
    unnamed: Set[str]
    whole: bool
    """Whether the whole folder was searched."""


class FoundSample(NamedTuple):
    """A new sample in a file."""

    rank: int
    sample: Sample


class ScalarFiles:
    """The metrics files of one attempt's ranks on this host.

    Args:
        workdir: The job's folder.
        began: Unix time; earlier samples in a file belong to another attempt.
        run: The run's id.
        node: This host's node rank.

    Attributes:
        notes: Notes for the user; the caller removes them.
    """

    def __init__(self, workdir: str, began: float, run: str, node: int) -> None:
        self.notes: List[str] = []
        self._workdir = workdir
        self._began = began
        self._run = run
        self._open: Dict[Tuple[int, int], Tuple[int, ScalarFile]] = {}
        self._done: Set[Tuple[int, int]] = set()
        """Files that are no longer read because of an error."""
        self._first = self._next = time.monotonic()
        before = _lying(workdir) if node == 0 else None
        self._before = before.unnamed if before and before.whole else None
        """Tables that existed when the attempt began; None if they are unknown or irrelevant."""

    def poll(self, pids: Mapping[int, int], *, last: bool = False) -> Iterator[FoundSample]:
        """Yield the new samples.

        Args:
            pids: The ranks that have begun.
            last: Whether the ranks have ended, so that all the rest is read.
        """
        now = time.monotonic()
        if pids and (now >= self._next or last):
            self._next = now + _EVERY[now - self._first > 60]
            self._search(pids)
        budget = 1 << 20 if last else (64 << 10)  # bytes to read at each poll, and at the last one
        for key, (rank, file) in list(self._open.items()):
            try:
                samples = file.read(budget // len(self._open))
            except (MalformedFileError, OSError) as error:
                self._give_up(key, file, error)
                continue
            for sample in samples:
                if sample.t is None or not sample.t < self._began - 1:
                    yield FoundSample(rank, sample)

    def close(self) -> None:
        self._done.update(self._open)
        for _, file in self._open.values():
            file.close()
        self._open.clear()

    def _search(self, pids: Mapping[int, int]) -> None:
        table = procs.table()
        ranks = {pid: rank for rank, pid in pids.items()}
        for rank, pid in pids.items():
            for below in sorted(procs.descendants(table, pid))[:256]:
                ranks.setdefault(below, rank)
        self._search_open(ranks, pids)
        lying = _lying(self._workdir)
        for path in sorted(lying.named):
            rank_of = ranks.get(_writer(path, self._began))
            if rank_of is not None:
                self._add(rank_of, path, path)
        if self._before is None or not lying.whole:
            return
        fresh = lying.unnamed - self._before
        # A table that vanished and appears again is new; one that appears while another training may write is not ours.
        self._before &= lying.unnamed
        if fresh and self._others(table, set(ranks)):
            self._before |= fresh
        else:
            for path in sorted(fresh):
                self._add(min(pids), path, path)

    def _search_open(self, ranks: Mapping[int, int], pids: Mapping[int, int]) -> None:
        deadline = time.monotonic() + _PATIENCE
        for pid, rank in ranks.items():
            if time.monotonic() > deadline:
                return
            # Forked workers inherit their parent's open files.
            if pid == pids[rank] or procs.command(pid) != procs.command(pids[rank]):
                for path, name in _written(pid):
                    self._add(rank, path, name)

    def _add(self, rank: int, path: str, name: str) -> None:
        if len(self._open) + len(self._done) >= _MOST_FILES:
            return
        try:
            file = ScalarFile(path, name)
        except (MalformedFileError, OSError):
            return
        if file.key in self._open or file.key in self._done:
            file.close()
        else:
            self._open[file.key] = (rank, file)

    def _give_up(self, key: Tuple[int, int], file: ScalarFile, error: Exception) -> None:
        if file.is_of_metrics:
            self.notes.append("stopped reading metrics from %s: %s" % (file.name, error))
        del self._open[key]
        self._done.add(key)
        file.close()

    def _others(self, table: Mapping[int, procs.Proc], ours: Set[int]) -> bool:
        """Whether another training of this user works in the job's folder."""
        for pid in table.keys() - ours:
            # Another host of the run may be this machine.
            if procs.owner(pid) != os.getuid() or procs.tag(pid).startswith(self._run + "/"):
                continue
            try:
                there = os.readlink("/proc/%d/cwd" % pid)
            except OSError:
                continue
            if (there + "/").startswith(self._workdir.rstrip("/") + "/") and procs.has_mapped(pid, b"/libtorch"):
                return True
        return False


def _writer(path: str, began: float) -> int:
    """The pid in the name of an event file that was created on this host since `began`; 0 for any other file."""
    match = _EVENTS.match(os.path.basename(path))
    if not match or match.group(2) != socket.gethostname() or int(match.group(1)) < int(began):
        return 0
    return int(match.group(3))


def _written(pid: int) -> Iterator[Tuple[str, str]]:
    """The metrics files that a process has open for writing: a path to open each, and its name."""
    folder = "/proc/%d/fd" % pid
    try:
        numbers = os.listdir(folder)[:2048]
    except OSError:
        return
    for number in numbers:
        path = "%s/%s" % (folder, number)
        try:
            name = os.readlink(path)
            if decoder(name) is None:
                continue
            with open("/proc/%d/fdinfo/%s" % (pid, number), encoding="ascii", errors="replace") as file:
                flags = _WRITES.search(file.read(4096))
        except OSError:
            continue
        if flags and int(flags.group(1), 8) & os.O_ACCMODE != os.O_RDONLY:
            yield path, name


def _lying(workdir: str) -> _Lying:
    """This user's metrics files below a folder."""
    deadline = time.monotonic() + _PATIENCE
    lying = _Lying(set(), set(), whole=True)
    folders = [(workdir, 4)]
    while folders:
        folder, deeper = folders.pop(0)  # the nearest first
        try:
            with os.scandir(folder) as entries:
                # Entries of one folder that are examined: it may hold a data set
                for entry in itertools.islice(entries, 5000):
                    if time.monotonic() > deadline:
                        return lying._replace(whole=False)
                    if entry.name in ("metrics.csv", "results.csv") or entry.name.startswith(EVENTS):
                        if _is_ours(entry.path):
                            (lying.named if _EVENTS.match(entry.name) else lying.unnamed).add(entry.path)
                    elif deeper and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        folders.append((entry.path, deeper - 1))
        except OSError:
            continue
    return lying


def _is_ours(path: str) -> bool:
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(seen.st_mode) and seen.st_uid == os.getuid()
