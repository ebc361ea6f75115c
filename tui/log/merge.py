"""All ranks' lines in one order that only grows at its end: a line's place in it never changes."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field

from tui.log.index import LineIndex
from tui.log.timeline import Timeline

SHIFT = 40
"""An entry of the order is `source << SHIFT | line`."""
LINE = (1 << SHIFT) - 1
BATCH = 8000
"""The most lines sorted at once."""
BLOCK = 4096
"""Lines per step of a search."""
HOLD = 0.4
"""Seconds that new lines wait for lines of other hosts that were printed before them."""


Spans = dict[int, tuple[int, int]]
"""Source → its first line in a block of the order, and the end of its lines; in between none is missing."""


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
        """Give places to one more batch of lines, by time; True if there were any.

        Args:
            hold: Delay lines by `HOLD`, which live logs of several hosts need.
        """
        limits = self._limits([source.ready for source in sources], hold)
        ready = [(source, limit) for source, limit in zip(sources, limits, strict=False) if limit > source.merged]
        if not ready:
            return False
        if len(ready) == 1:
            ((source, limit),) = ready
            limit = min(limit, source.merged + BATCH)
            self._append(range(source.merged, limit), source)
        else:
            self._sort(ready)
        for first in range(len(self._spans) * BLOCK, len(self.items) - BLOCK + 1, BLOCK):
            self._spans.append(_spans(self.items[first : first + BLOCK]))
        return True

    def spans(self, first: int, last: int) -> Spans:
        """The lines of each source between two places."""
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

    def _append(self, lines: range, source: LogSource) -> None:
        mark = source.number << SHIFT
        self.items.extend(range(mark + lines.start, mark + lines.stop))
        source.merged = lines.stop

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
