"""The logs of a run in its local mirror: its attempts, the growing files of an attempt, and places in its order."""

from __future__ import annotations

import json
import re
import time
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from disttui.runner.errors import InputError
from disttui.runner.protocol.regular import read_regular
from disttui.runner.runs.store import KEPT
from disttui.runner.text import clean
from disttui.tui.log.index import LineIndex
from disttui.tui.log.merge import BLOCK, LINE, SHIFT, GrowthReader, LogSource, MergedOrder

DISCOVER = 1.0
"""Seconds between two searches for new files."""
UNTIMED = 1.0
"""Seconds to wait for the recorded time of new bytes before their time of arrival is used."""
CLOCKS = 0.05
"""Change of a clock's offset, in seconds, above which lines are sorted again."""

_ATTEMPT = re.compile(r"attempt-([0-9]{1,6})")
_LOG = re.compile(r"rank-([0-9]{1,7})\.log(?:~(.*))?")


class LogSources:
    """The logs in the mirror of one run.

    Args:
        mirror: Its folder, which contains one folder per node rank.
        names: The hosts' names by node rank; a missing name is replaced by `node` and the node rank.
        offsets: Node rank → its clock minus the leader's (s).
        counts: The number of ranks on each host; without it, every rank with a log is accepted.
    """

    def __init__(
        self,
        mirror: Path,
        names: Sequence[str] = (),
        offsets: Mapping[int, float] | None = None,
        counts: Sequence[int] = (),
    ) -> None:
        self.mirror = mirror
        self._names = [clean(name) for name in names]
        self._offsets = dict(offsets or {})
        ends = list(accumulate(counts))
        self._ranks = [range(end - count, end) for count, end in zip(counts, ends, strict=True)]

    def set_offsets(self, offsets: Mapping[int, float]) -> bool:
        """Take the current clock offsets (s); return True if open logs must be read again."""
        apart = any(abs(self.offset(node) - offset) > CLOCKS for node, offset in offsets.items())
        self._offsets.update(offsets)
        return apart

    def attempts(self) -> list[int]:
        """The attempts with files in the mirror, in order; a new one only once a rank has printed something."""
        found = (_ATTEMPT.fullmatch(path.name) for path in self.mirror.glob("*/attempt-*"))
        known = sorted({int(match[1]) for match in found if match})
        while len(known) > 1 and not self._printed(known[-1]):
            known.pop()
        return known

    def _printed(self, attempt: int) -> bool:
        return any(_size(path) for path in self.mirror.glob(f"*/attempt-{attempt}/rank-*.log*"))

    def open(self, attempt: int | None = None) -> AttemptLog:
        """The logs of an attempt; None means the latest one at the first poll."""
        return AttemptLog(self, attempt)

    def folders(self, attempt: int) -> dict[int, Path]:
        """Node rank → the attempt's folder."""
        found = self.mirror.glob(f"*/attempt-{attempt}")
        return {int(path.parent.name): path for path in found if path.parent.name.isdecimal()}

    def name(self, node: int) -> str:
        return self._names[node] if node < len(self._names) else f"node{node}"

    def ranks(self, node: int) -> range | None:
        """The ranks of a host; None if they are unknown."""
        return self._ranks[node] if node < len(self._ranks) else None

    def offset(self, node: int) -> float:
        """Seconds by which a host's clock is ahead of the leader's."""
        return self._offsets.get(node, 0.0)


class AttemptLog:
    """All logs of one attempt, with their lines in one order. One thread polls; any thread may read."""

    def __init__(self, run: LogSources, attempt: int | None) -> None:
        self._run = run
        self.attempt = attempt
        self.attempts: list[int] = []
        """All attempts seen so far."""
        self.sources: list[LogSource] = []
        self.order = MergedOrder()
        self.loaded = False
        """Whether everything present at the start has been read."""
        self._live: dict[Path, LogSource] = {}
        self._growth: dict[int, GrowthReader] = {}
        self._untimed: dict[int, tuple[int, float]] = {}
        self.settled = False
        """Whether everything present at the start has been read and sorted."""
        self._discover_at = 0.0

    @property
    def timed(self) -> bool:
        """Whether the lines' times come from the hosts; otherwise they are times of arrival here."""
        return any(growth.found for growth in list(self._growth.values()))

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a log."""
        return sorted({source.rank for source in self.sources})

    def poll(self, deadline: float) -> bool:
        """Read new lines until `deadline` (monotonic clock, s); return True if anything changed."""
        changed = self._discover() if time.monotonic() >= self._discover_at else False
        for source in list(self._live.values()):
            if not source.index.look():
                self._retire(source)
                changed = True
        for growth in self._growth.values():
            changed = growth.look() or changed
        changed = self._index(deadline) or changed
        self.loaded = self.loaded or not any(source.index.behind for source in self._live.values())
        if self.loaded:
            self._give_times()
            changed = self._merge(deadline) or changed
        return changed

    def read(self, entry: int) -> bytes:
        """The bytes of one line of the order."""
        return self.sources[entry >> SHIFT].index.line(entry & LINE)

    def source_of(self, entry: int) -> LogSource:
        """The source that contains a line of the order."""
        return self.sources[entry >> SHIFT]

    def time_of(self, entry: int) -> float:
        """The time of a line (unix time, s)."""
        source = self.source_of(entry)
        return source.timeline.times_of([source.index.starts[entry & LINE]])[0]

    def tails(self) -> list[tuple[LogSource, bytes]]:
        """The unfinished lines, such as progress bars."""
        unfinished = (source for source in self._live.values() if source.index.scanned > source.index.starts[-1])
        return [(source, source.index.tail()) for source in unfinished]

    def _discover(self) -> bool:
        self._discover_at = time.monotonic() + DISCOVER
        self.attempts = self._run.attempts()
        if self.attempt is None:
            if not self.attempts:
                return False
            self.attempt = self.attempts[-1]
        known = len(self.sources)
        for node, folder in sorted(self._run.folders(self.attempt).items()):
            if node not in self._growth:
                self._growth[node] = GrowthReader(
                    folder / "growth.jsonl", self._run.offset(node), self._run.ranks(node)
                )
            self._discover_host(node, folder)
        return len(self.sources) > known

    def _discover_host(self, node: int, folder: Path) -> None:
        held = {source.index.inode for source in self.sources}
        logs = [(match, path) for path in folder.iterdir() if (match := _LOG.fullmatch(path.name))]
        for match, path in sorted(logs, key=lambda log: (int(log[0][1]), _age(log[0][2]))):
            current = match[2] is None
            if path in self._live if current else _inode(path) in held:
                continue
            base = _base(folder, path.name) if current else 0
            source = self._add(node, int(match[1]), path, base)
            if current:
                self._live[path] = source
            else:
                while source.index.grow():
                    pass
                self._close(source)

    def _add(self, node: int, rank: int, path: Path, base: int) -> LogSource:
        label = f"{self._run.name(node)}:{rank}"
        source = LogSource(len(self.sources), node, rank, label, LineIndex(path, base))
        source.index.look()
        self.sources.append(source)
        return source

    def _retire(self, source: LogSource) -> None:
        """Handle a file that the mirror has renamed and started again, or that was truncated."""
        path = source.index.path
        del self._live[path]
        for other in path.parent.glob(f"{path.name}~*"):
            if _inode(other) == source.index.inode:
                source.index.path = other
                while source.index.grow():
                    pass
        self._close(source)
        self._discover_at = 0.0

    def _close(self, source: LogSource) -> None:
        source.index.finish()
        source.closed = True

    def _index(self, deadline: float) -> bool:
        grown = False
        behind = [source for source in self._live.values() if source.index.behind]
        while behind:
            behind = [source for source in behind if source.index.grow() and source.index.behind]
            grown = True
            if time.monotonic() > deadline:
                break
        return grown

    def _give_times(self) -> None:
        now = time.monotonic()
        newer: dict[tuple[int, int], int] = {}
        for source in reversed(self.sources):
            growth, place = self._growth[source.node], (source.node, source.rank)
            growth.copy_into(source.rank, newer.get(place, 0), source.index.base, source.timeline)
            newer[place] = newer.get(place, 0) + 1
            covered = source.timeline.covered
            if self._untimed.get(source.number, (-1, 0.0))[0] != covered:
                self._untimed[source.number] = (covered, now)
            if covered >= source.index.scanned:
                continue
            if source.closed or not growth.found or now - self._untimed[source.number][1] > UNTIMED:
                last = max(other.timeline.last for other in self.sources)
                source.timeline.add(last if growth.found and last else time.time(), source.index.scanned)

    def _merge(self, deadline: float) -> bool:
        changed = False
        hold = len(self.sources) > 1 and self.settled
        while self.order.merge(self.sources, hold=hold):
            changed = True
            if time.monotonic() > deadline:
                return True
        self.settled = True
        return changed


def _age(generation: str | None) -> tuple[int, int]:
    """Sort key for the files of one rank: renamed ones without a generation, by generation, then the current one."""
    if generation is None:
        return (2, 0)
    return (1, int(generation)) if generation.isdecimal() else (0, 0)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _base(folder: Path, name: str) -> int:
    """Offset in the original file of the first mirrored byte; 0 if the mirror does not record it."""
    try:
        held = json.loads(read_regular(folder.parent / KEPT))
        return int(held[f"{folder.name}/{name}"][1])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return 0


_CLOCK = re.compile(r"([0-2]?\d):([0-5]\d)(?::([0-5]\d))?")
_SINCE = re.compile(r"\+(?:(\d+):)?(\d+):([0-5]\d)|\+(\d+)s?")


def moment(text: str, begin: float) -> float:
    """The time (unix time, s) of `12:03`, `12:03:05`, `+90` or `+1:30` (since the log began).

    Args:
        begin: The time of the log's first line. A clock time before it means the next day.

    Raises:
        InputError: The text is not a time.
    """
    text = text.strip()
    if since := _SINCE.fullmatch(text):
        hours, minutes, seconds, plain = (int(group or 0) for group in since.groups())
        return begin + plain + hours * 3600 + minutes * 60 + seconds
    clock = _CLOCK.fullmatch(text)
    if not clock or int(clock[1]) > 23:
        raise InputError("not a time", "Type 12:03, 12:03:05, or +1:30 for 90 s after the beginning.")
    hour, minute, second = (int(group or 0) for group in clock.groups())
    try:
        day = datetime.fromtimestamp(begin)
    except (ValueError, OSError, OverflowError):
        raise InputError("the time of the log's first line is not known") from None
    found = day.replace(hour=hour, minute=minute, second=second, microsecond=0).timestamp()
    return found if found + 60 > begin else found + 86400


def place_at(log: AttemptLog, time: float, total: int) -> int:
    """The place of the first of `total` lines from a unix time (s) on, or `total`."""
    return bisect_left(range(total), time, key=lambda place: log.time_of(log.order.items[place]))


BACK = 400
"""Number of lines at the end of a rank's log to search for its failing line."""


class Blame(NamedTuple):
    """The culprits and victims of an attempt's failure or stall. `said` must be clean."""

    attempt: int = 0
    culprits: frozenset[int] = frozenset()
    """The ranks that caused the failure, or that the others wait for."""
    victims: frozenset[int] = frozenset()
    """The ranks that failed or wait because of them."""
    node: int | None = None
    """The node rank of the host where the failure began."""
    said: Mapping[int, str] = {}
    """Rank → the end of its failing line, if known."""
    stalled: bool = False
    """Whether it is a stall: the victims have not failed, but wait."""


def failing_line(log: AttemptLog, rank: int, said: str) -> int | None:
    """The entry of a rank's last line with the text `said`, or else of its last line; None if it has no lines."""
    source = next((one for one in reversed(log.sources) if one.rank == rank and one.merged), None)
    if source is None:
        return None
    last = source.merged - 1
    wanted = said.encode("utf-8", "replace")
    found = (line for line in range(last, max(-1, last - BACK), -1) if wanted in source.index.line(line))
    return (source.number << SHIFT) + (next(found, last) if wanted else last)


def place_of(order: MergedOrder, entry: int) -> int | None:
    """The place of an entry in the order; None if it has none yet."""
    source, line, items = entry >> SHIFT, entry & LINE, order.items
    total = len(items)
    for first in range((total - 1) // BLOCK * BLOCK, -1, -BLOCK):
        begin, end = order.spans(first, min(first + BLOCK, total)).get(source, (0, 0))
        if begin <= line < end:
            return first + array("Q", items[first : first + BLOCK]).index(entry)
    return None
