"""Extracts metrics from the ranks' output, for scripts that write none themselves.

The cost is bounded: 1 MiB of log per second for a whole host. If the ranks print more, only the newest 64 KiB are read,
so that metrics are sampled. The log itself stays complete.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import threading
import time
from types import FrameType
from typing import Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ...protocol.regular import append, open_regular, read_regular, records
from ...protocol.watch import Judge
from ..host import HostPart
from .patterns import LONGEST, Record, by_pattern
from .recogniser import Recogniser, may_tell, shows_bar
from .scalar_files import ScalarFiles
from .scalar_formats import Sample

_NEWEST = 64 << 10
_MATCH_LIMIT = 0.2
"""Seconds of CPU time that a line may take."""
_TIMERS = (
    (signal.ITIMER_PROF, signal.SIGPROF, _MATCH_LIMIT),
    # Wall-clock seconds that it may take on a busy host: the supervisor cannot send heartbeats during that time
    (signal.ITIMER_REAL, signal.SIGALRM, 2.0),
)
_PACE_OVER = 10.0
"""Seconds over which a bar's steps are counted to compute steps per second …"""
_PACE_LEAST = 2.0
"""… and the minimum at the beginning."""
_BREAKS = re.compile(rb"[\r\n]+")


class Reader:
    """Finds metrics in lines: with the profile's expression, or else in the known formats.

    Args:
        pattern: The profile's expression; its named groups are the metrics, and nothing else is searched for.

    Attributes:
        notes: Notes for the user; the caller removes them.
    """

    def __init__(self, pattern: Optional[str]) -> None:
        self.notes: List[str] = []
        instead = "; usual forms of metrics are read instead"
        self._own = _Expression(pattern, "metrics.pattern", "one line", instead, self.notes)

    def read(
        self, lines: List[bytes], known: Recogniser, most: int, following: bytes = b"", *, begins: bool = False
    ) -> List[Record]:
        """Return the metrics in some lines.

        Args:
            known: The recogniser of the rank that printed them.
            most: How many lines may be parsed; the newest are.
            following: The known part of the line after them.
            begins: No metric of the rank was found before; parse the first line too: it is needed to show a loss.
        """
        if self._own.usable:
            return list(filter(None, map(by_pattern, self._own.search([line] for line in lines[-most:]))))
        telling = [index for index, line in enumerate(lines) if may_tell(line)]
        first = 1 if begins else 0
        telling = [*telling[:first], *telling[max(first, len(telling) - most + first) :]]
        behind = [*lines[1:], following]
        return [record for index in telling if (record := known.read(lines[index], behind[index]))]


class _Expression:
    """A regular expression of the profile, which is disabled once a match takes too long.

    Args:
        key: Its key in the profile.
        batch: What may take at most `_MATCH_LIMIT`.
        instead: What happens without it.
        notes: Receives the reason if it is disabled.
    """

    def __init__(self, pattern: Optional[str], key: str, batch: str, instead: str, notes: List[str]) -> None:
        self._slow = "%s took more than %g s for %s and is no longer used%s" % (key, _MATCH_LIMIT, batch, instead)
        self._notes = notes
        self._compiled: "Optional[re.Pattern[str]]" = None
        try:
            self._compiled = re.compile(pattern) if pattern else None
        except (re.error, OverflowError, RecursionError) as error:
            notes.append("%s is not a regular expression: %s" % (key, error))

    @property
    def usable(self) -> bool:
        """Whether there is an expression that is not disabled."""
        return self._compiled is not None

    def search(self, batches: Iterable[Sequence[bytes]]) -> "List[re.Match[str]]":
        """Return the first match in each line that has one."""
        found: "List[re.Match[str]]" = []
        own = self._compiled
        if own is None:
            return found
        guard = _Guard()
        try:
            for batch in batches:
                texts = [line.decode("utf-8", "replace") for line in batch]
                with guard:
                    found += filter(None, map(own.search, texts))
        except _TooSlowError:
            self._compiled = None
            self._notes.append(self._slow)
        finally:
            guard.close()
        return found


class Harvest:
    """Reads the logs of one attempt's ranks and appends the metrics it recognises to their metrics files.

    A rank whose script writes its metrics file itself is left out. The log has priority over other metrics files: a
    name that was found in the log is not taken from a file, unless only the file has its steps.

    Args:
        pattern: The profile's expression; its named groups are the metrics, and nothing else is searched for.
        files: The metrics files that the ranks write.
        earlier: The folders of earlier attempts.
        judge: Called with whether the ranks' lines match the `log` expression of `watch`.

    Attributes:
        notes: Notes for the user; the caller of `poll` removes them.
    """

    def __init__(
        self,
        attempt_dir: str,
        ranks: Sequence[int],
        pattern: Optional[str],
        files: Optional[ScalarFiles] = None,
        earlier: Sequence[str] = (),
        judge: Optional[Judge] = None,
    ) -> None:
        self._reader = Reader(pattern)
        self.notes = self._reader.notes
        self._judge = judge or Judge([])
        self._log = _Expression(self._judge.log_pattern, "watch.log.pattern", "new lines of a rank", "", self.notes)
        self._rows = {
            rank: _RankFiles(
                os.path.join(attempt_dir, "rank-%d" % rank),
                from_0=_counts_from_0(os.path.join(folder, "rank-%d.metrics.jsonl" % rank) for folder in earlier),
            )
            for rank in ranks
        }
        self._polled = time.monotonic()
        self._files = files

    def poll(self, pids: Mapping[int, int], *, last: bool = False) -> None:
        """Read what is new since the last call.

        Args:
            pids: The ranks that have begun.
            last: Whether the ranks have ended.
        """
        self._poll_logs(pids)
        if self._files is None:
            return
        for found in self._files.poll(pids, last=last):
            if found.rank in self._rows:
                self._rows[found.rank].add(found.sample)
        self.notes += self._files.notes
        self._files.notes.clear()
        if last:
            self._files.close()

    def _poll_logs(self, pids: Iterable[int]) -> None:
        now = time.monotonic()
        budget = int((1 << 20) * min(1.0, now - self._polled + 0.05))
        self._polled = now
        rows = {rank: row for rank, row in self._rows.items() if row.grown(foreign_too=self._log.usable)}
        matched = set()
        for done, (rank, row) in enumerate(rows.items()):
            share = max(budget // (len(rows) - done), _NEWEST // len(rows))
            budget -= min(share, row.behind)
            lines = row.read(share)
            if self._log.search([lines]):
                matched.add(rank)
            most = 400 // len(rows)  # lines of a host that are parsed at each poll, the newest of every rank
            if not row.foreign:
                row.take(self._reader.read(lines, row.known, most, row.tail, begins=not row.logged))
        for rank in matched.union(pids) if self._log.usable else ():
            self._judge.hear_log(rank, rank in matched, time.time())


class _RankFiles:
    """One rank's log and metrics file, with the read position in both."""

    def __init__(self, base: str, *, from_0: bool) -> None:
        self.known = Recogniser(from_0=from_0)
        self._log = base + ".log"
        self._metrics = base + ".metrics.jsonl"
        self._size = 0
        self._offset = 0
        self._written = 0
        self.tail = b""
        """The newest line as far as it has been written."""
        self.foreign = False
        """Whether the script writes its metrics itself."""
        self.logged: Set[str] = set()
        """Names of metrics found in the log."""
        self._without_step: Set[str] = set()
        """Names never found in the log with a step."""
        self._of_files: Set[str] = set()
        """Those that a file has with steps: the log's values of these are no longer used."""
        self._step = 0
        """The newest step found in the log."""
        self._newest = 0.0
        """Time of the newest record."""
        self._counted = b""
        """The newest line, if it is a bar that was read before its line ended."""
        self._seen: List[Tuple[float, int]] = []
        """(monotonic seconds, step) at which the bar was seen, without step 0: from there it may jump to the step of a
        checkpoint."""

    def grown(self, foreign_too: bool) -> bool:
        """Whether there is anything new to read."""
        self._size = _size(self._log) or 0
        return (not self._is_foreign() or foreign_too) and self.behind > 0

    def _is_foreign(self) -> bool:
        size = _size(self._metrics)
        # An open file counts as written: a script may print its first metrics before it writes them.
        self.foreign = self.foreign or (size is not None and size != (self._written or None))
        return self.foreign

    @property
    def behind(self) -> int:
        """Bytes of the log that have not been read."""
        return self._size - self._offset

    def read(self, share: int) -> List[bytes]:
        """The new lines that are complete or a whole bar; only the newest if there are more than `share` bytes."""
        skip = self.behind > share
        try:
            with open_regular(self._log) as file:
                if skip:
                    self._offset = self._size - min(share, _NEWEST)
                file.seek(self._offset)
                data = file.read(self.behind)
        except OSError:
            return []
        self._offset += len(data)
        # The rest of a line whose beginning was skipped is made too long to be parsed.
        lines = _BREAKS.split((b" " * LONGEST + b" " if skip else self.tail) + data)
        self.tail = lines.pop()[: LONGEST + 1]
        lines = [line for line in lines if 0 < len(line) <= LONGEST]
        counted, self._counted = self._counted, b""
        if shows_bar(self.tail):
            self._counted = self.tail
            lines.append(self.tail)
        return lines[1:] if counted and lines and lines[0].startswith(counted) else lines

    def take(self, records: List[Record]) -> None:
        """Append metrics found in the log."""
        # Lightning draws its bar twice for each step, first with the loss of the previous step.
        behind: List[Record] = [*records[1:], {}]
        records = [one for one, later in zip(records, behind) if not _redrawn(one, later)]  # noqa: B905 (Python 3.8)
        self._add_pace(records)
        for record in records:
            step = record.get("step")
            if step is None:
                self._without_step.update(record.keys() - self.logged)
            else:
                self._without_step.difference_update(record)
            self.logged.update(record)
            self._step = max(self._step, step) if isinstance(step, int) else self._step
        kept = [_without(record, self._of_files & self._without_step) for record in records]
        self._write([record for record in kept if record], time.time())

    def _add_pace(self, records: List[Record]) -> None:
        """Add the steps per second of a bar, as measured here, to the newest record."""
        step = self.known.bar_step
        if not records or not step or (self._seen and step == self._seen[-1][1]):
            return
        now = time.monotonic()
        self._seen.append((now, step))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _PACE_OVER:
            del self._seen[0]
        begun, first = self._seen[0]
        if now - begun >= _PACE_LEAST and step > first:
            records[-1].setdefault("steps_per_s", float("%.4g" % ((step - first) / (now - begun))))

    def add(self, sample: Sample) -> None:
        """Append metrics from a file, without names found in the log: the log is up to date, files lag behind."""
        values = sample.record()
        if isinstance(values.get("step"), int):
            self._of_files |= self._without_step & values.keys()
        record = _without(values, self.logged - self._of_files - {"step"})
        if not record.keys() - {"step", "epoch"} or self._is_foreign():
            return
        step = record.get("step")
        if not isinstance(step, int) or step < self._step:
            record.pop("step", None)  # the run is further already: its step must not decrease
        now = time.time()
        when = now if sample.t is None or not sample.t <= now else sample.t
        self._write([record], max(when, self._newest))

    def _write(self, records: List[Record], when: float) -> None:
        if not records:
            return
        self._newest = when
        # Records use our time, even if a script calls one of its own values `t`.
        rows = ({name: value for name, value in record.items() if name != "t"} for record in records)
        text = "".join(json.dumps({"t": when, **row}) + "\n" for row in rows)
        self._written += append(self._metrics, text.encode())


def _without(record: Record, names: Set[str]) -> Record:
    return {name: value for name, value in record.items() if name not in names}


def _redrawn(record: Record, later: Record) -> bool:
    """Whether the next record repeats each field of this one at the same step."""
    return "step" in record and record["step"] == later.get("step") and record.keys() <= later.keys()


class _TooSlowError(Exception):
    """A match took too long."""


class _Guard:
    """Raises _TooSlowError for a block that takes too long: in the main thread during the block, since a signal can
    interrupt a match; in other threads after it."""

    def __init__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        self._began = 0.0
        self._guarding = False
        if self._main:
            self._before = {number: signal.signal(number, self._stop) for _, number, _ in _TIMERS}

    def __enter__(self) -> None:
        self._began = time.thread_time()
        self._guarding = True
        if self._main:
            for timer, _, limit in _TIMERS:
                signal.setitimer(timer, limit)

    def __exit__(self, *_: object) -> None:
        self._guarding = False
        self._stop_timers()
        if time.thread_time() - self._began > _MATCH_LIMIT:
            raise _TooSlowError

    def close(self) -> None:
        """Stop the timers, which an exception in `__exit__` may have left active, and restore the signal handlers."""
        self._stop_timers()
        if self._main:
            for number, before in self._before.items():
                signal.signal(number, before)

    def _stop_timers(self) -> None:
        if self._main:
            for timer, _number, _limit in _TIMERS:
                signal.setitimer(timer, 0)

    def _stop(self, _number: int, _frame: Optional[FrameType]) -> None:
        # If both timers expire in one match, the second signal is handled after it: it must not end anything else.
        if self._guarding:
            self._guarding = False
            raise _TooSlowError


def _counts_from_0(paths: Iterable[str]) -> bool:
    """Whether the first epoch in a rank's metrics files is 0."""
    return next((epoch == 0 for epoch in map(_first_epoch, paths) if epoch is not None), False)


def _first_epoch(path: str) -> object:
    """The first epoch in a metrics file, None if it has none."""
    try:
        # Bytes of a metrics file that are searched for its first epoch
        lines = read_regular(path, 64 << 10).split(b"\n")
    except OSError:
        return None
    return next((record["epoch"] for record in records(lines[:-1]) if "epoch" in record), None)


def _size(path: str) -> Optional[int]:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


_DEEPEST = 3
"""Levels of subfolders that are searched for checkpoints, such as `out/step-100/`."""
_PATIENCE = 0.3
"""Seconds that the search may take: it delays heartbeats, and the folder may contain a data set."""


def since(host: HostPart, when: float) -> bool:
    """Whether a possible checkpoint file was written since `when` (unix time); True if the search takes too long."""
    deadline = time.monotonic() + _PATIENCE
    folders = [(host.checkpoints, _DEEPEST), (host.workdir, _DEEPEST)]
    while folders:
        folder, deeper = folders.pop(0)  # the nearest first
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if time.monotonic() > deadline or _is_new_file(entry, when):
                        return True
                    if deeper and _may_hold_checkpoints(entry, host):
                        folders.append((entry.path, deeper - 1))
        except OSError:
            continue
    return False


def _is_new_file(entry: "os.DirEntry[str]", when: float) -> bool:
    found = entry.stat(follow_symlinks=False)
    return stat.S_ISREG(found.st_mode) and found.st_size > 0 and found.st_mtime >= when


def _may_hold_checkpoints(entry: "os.DirEntry[str]", host: HostPart) -> bool:
    ours = entry.path == host.run_dir
    return entry.is_dir(follow_symlinks=False) and not entry.name.startswith((".", "__pycache__")) and not ours
