"""All ranks' lines in one order that only grows at its end, so that a line's place in it never changes.

The lines are sorted by time, from the sizes of logs that the supervisor recorded (docs/formats.md, growth.jsonl).
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from disttui.runner.protocol.regular import open_regular
from disttui.runner.runs.contents import Growth, growth_of
from disttui.runner.untrusted.records import Unfinished
from disttui.tui.log.index import LineIndex

_PIECE = 1 << 20
_FILES = 64
"""Number of successive files of one log whose times are kept until the log is read."""
STEP = 0.25
"""Seconds between two records of a growing file."""


class Timeline:
    """Sizes of one log over time: unix times (s), and sizes of the local file (bytes)."""

    def __init__(self) -> None:
        self._times = array("d")
        self._sizes = array("Q")

    @property
    def covered(self) -> int:
        """Number of bytes whose time is known."""
        return self._sizes[-1] if self._sizes else 0

    @property
    def last(self) -> float:
        """Time of the latest record, or 0."""
        return self._times[-1] if self._times else 0.0

    def add(self, time: float, size: int) -> None:
        """Record that the file had `size` bytes at `time`, unless the size has not increased."""
        if size > self.covered:
            self._times.append(max(time, self.last))
            self._sizes.append(size)

    def take(self) -> list[tuple[float, int]]:
        """Remove and return all records."""
        found = list(zip(self._times, self._sizes, strict=True))
        del self._times[:], self._sizes[:]
        return found

    def times_of(self, offsets: Sequence[int]) -> list[float]:
        """The times of bytes at rising `offsets`, interpolated linearly over the STEP before their record."""
        times: list[float] = []
        done = 0
        while done < len(offsets):
            note = bisect_right(self._sizes, offsets[done])
            if note == len(self._sizes):
                return times + [self.last] * (len(offsets) - done)
            upto = bisect_left(offsets, self._sizes[note], done)
            end, low = self._times[note], self._sizes[note - 1] if note else 0
            begin = max(end - STEP, self._times[note - 1]) if note else end - STEP
            pace = (end - begin) / (self._sizes[note] - low)
            times += [begin + (offset - low) * pace for offset in offsets[done:upto]]
            done = upto
        return times


class GrowthReader:
    """Follows one `growth.jsonl`, for the timelines of the logs of one host's ranks.

    Args:
        offset: Seconds by which the host's clock is ahead of the leader's.
        ranks: The host's ranks; records of other ranks are ignored.
    """

    def __init__(self, path: Path, offset: float = 0.0, ranks: Container[int] | None = None) -> None:
        self._path = path
        self._offset = offset
        self._ranks = ranks
        self._read = 0
        self._unfinished = Unfinished()
        self._sizes: dict[int, int] = {}
        self._notes: dict[int, deque[Timeline]] = {}
        self.found = False

    def look(self) -> bool:
        """Read new records; return True if there were any."""
        any_new = False
        try:
            with open_regular(self._path) as file:
                file.seek(self._read)
                self.found = True
                while data := file.read(_PIECE):
                    for _, record in self._unfinished.lines(self._read, data):
                        any_new = True
                        self._take(growth_of(record or {}))
                    self._read += len(data)
        except OSError:
            pass
        return any_new

    def copy_into(self, rank: int, newer: int, base: int, into: Timeline) -> None:
        """Move the new records of a rank's log into a timeline.

        Args:
            newer: Number of files of this rank that are newer than this one (a shrunk size begins a new file).
            base: Offset of the first mirrored byte.
        """
        files = self._notes.get(rank, ())
        if newer < len(files):
            for time, size in files[-1 - newer].take():
                if size > base:
                    into.add(time, size)

    def _take(self, growth: Growth | None) -> None:
        if growth is None:
            return
        for rank, size in growth.sizes.items():
            if self._ranks is not None and rank not in self._ranks:
                continue
            files = self._notes.setdefault(rank, deque([Timeline()], _FILES))
            if size < self._sizes.get(rank, 0):
                files.append(Timeline())
            self._sizes[rank] = size
            files[-1].add(growth.t - self._offset, size)


SHIFT = 40
"""Bits of a line number: an entry of the order is `source << SHIFT | line`."""
LINE = (1 << SHIFT) - 1
BATCH = 8000
"""Approximate maximum number of lines sorted together."""
BLOCK = 4096
"""Lines per step of a search."""
HOLD = 0.4
"""Seconds for which new lines wait for lines of other hosts that were printed before them."""


Spans = dict[int, tuple[int, int]]
"""Source → its first line in a block of the order, and the end of its lines there; none in between is missing."""


@dataclass
class LogSource:
    """One log file: a rank's on a host, or the part mirrored before it was truncated."""

    number: int
    node: int
    rank: int
    label: str
    """Host and rank, for the prefix of merged lines."""
    index: LineIndex
    timeline: Timeline = field(default_factory=Timeline)
    merged: int = 0
    """Number of lines that have a place in the order."""
    closed: bool = False

    @property
    def ready(self) -> int:
        """Number of lines whose time is known."""
        return min(len(self.index), bisect_left(self.index.starts, self.timeline.covered))


class MergedOrder:
    """The merged order of all sources of one attempt."""

    def __init__(self) -> None:
        self.items = array("Q")
        self._waiting: deque[tuple[float, list[int]]] = deque()
        self._spans: list[Spans] = []

    def __len__(self) -> int:
        return len(self.items)

    def merge(self, sources: list[LogSource], *, hold: bool) -> bool:
        """Append one more batch of lines to the order, by time; return True if there were any.

        Args:
            hold: Whether to delay lines by `HOLD`, which live logs of several hosts need.
        """
        limits = self._limits([source.ready for source in sources], hold)
        ready = [(source, limit) for source, limit in zip(sources, limits, strict=False) if limit > source.merged]
        if not ready:
            return False
        if len(ready) == 1:
            ((source, limit),) = ready
            limit = min(limit, source.merged + BATCH)
            mark = source.number << SHIFT
            self.items.extend(range(mark + source.merged, mark + limit))
            source.merged = limit
        else:
            self._sort(ready)
        for first in range(len(self._spans) * BLOCK, len(self.items) - BLOCK + 1, BLOCK):
            self._spans.append(_spans(self.items[first : first + BLOCK]))
        return True

    def spans(self, first: int, last: int) -> Spans:
        """The lines of each source from place `first` up to but not including `last`."""
        if first % BLOCK == 0 and last - first == BLOCK and first // BLOCK < len(self._spans):
            return self._spans[first // BLOCK]
        return _spans(self.items[first:last])

    def _limits(self, ready: list[int], hold: bool) -> list[int]:
        if not hold:
            self._waiting.clear()
            return ready
        now = time.monotonic()
        if not self._waiting or self._waiting[-1][1] != ready:
            self._waiting.append((now, ready))
        while len(self._waiting) > 1 and self._waiting[1][0] <= now - HOLD:
            self._waiting.popleft()
        return self._waiting[0][1] if self._waiting[0][0] <= now - HOLD else []

    def _sort(self, ready: list[tuple[LogSource, int]]) -> None:
        share = max(16, BATCH // len(ready))
        slices = []
        horizon = float("inf")
        for source, limit in ready:
            upto = min(limit, source.merged + share)
            times = source.timeline.times_of(source.index.offsets(source.merged, upto))
            if upto < limit:
                horizon = min(horizon, times[-1])
            slices.append((source, times))
        all_times: list[float] = []
        entries: list[int] = []
        for source, times in slices:
            taken = bisect_right(times, horizon)
            first = (source.number << SHIFT) + source.merged
            all_times += times[:taken]
            entries += range(first, first + taken)
            source.merged += taken
        by_time = sorted(range(len(entries)), key=all_times.__getitem__)
        self.items.extend(map(entries.__getitem__, by_time))


def _spans(block: array[int]) -> Spans:
    if block[-1] - block[0] == len(block) - 1:
        return {block[0] >> SHIFT: (block[0] & LINE, (block[-1] & LINE) + 1)}
    sources = [entry >> SHIFT for entry in block]
    last = dict(zip(sources, block, strict=True))
    first = dict(zip(reversed(sources), reversed(block), strict=True))
    return {number: (first[number] & LINE, (last[number] & LINE) + 1) for number in last}
