"""Searches one file in stretches that grow during a search.

A block of the merged order has few lines of each of many ranks: reading them one by one would take longer than
searching them. The first stretch is only as long as requested, so that the first hit does not wait for more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

from tui.log.index import LineIndex
from tui.log.search import Pattern

LEAST, MOST = 16 * 1024, 128 * 1024
"""Bytes of the second stretch, and of the longest: data that fits the processor's cache is searched twice as fast."""
ASKED = 256 * 1024
"""The least bytes of a stretch that another process searches: waking it takes as long as a short search."""
TOGETHER = 4 * 1024 * 1024
"""The most bytes of the stretches of all files together: one step may read all of them."""


class Stretch:
    """The lines of one file that match all patterns, in the stretch searched last.

    Args:
        patterns: At least one.
        files: How many files are searched like this one.
    """

    def __init__(self, index: LineIndex, patterns: Sequence[Pattern], files: int) -> None:
        self._index = index
        self._patterns = patterns
        most = ASKED if any(pattern.unknown for pattern in patterns) else MOST
        self._most = min(most, max(LEAST, TOGETHER // files))
        self._size = 0
        self._begin = self._end = 0
        self._found: Sequence[int] = ()

    def lines(self, first: int, last: int) -> Sequence[int]:
        """The matching lines from `first` up to but not including `last`. Raises SearchFailed."""
        if first < self._begin or last > self._end:
            self._search(first, last)
        return self._found[bisect_left(self._found, first) : bisect_left(self._found, last)]

    def _search(self, first: int, last: int) -> None:
        index = self._index
        last = max(last, index.line_at(index.starts[first] + self._size))
        self._size = min(self._most, max(LEAST, self._size * 4))
        chunk = cache(lambda: index.chunk(first, last))
        found: Sequence[int] = self._patterns[0].lines(index, first, last, chunk)
        for pattern in self._patterns[1:]:
            if found:
                found = sorted(set(found).intersection(pattern.lines(index, first, last, chunk)))
        self._begin, self._end, self._found = first, last, found
