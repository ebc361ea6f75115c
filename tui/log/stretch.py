"""Searching one file in stretches that grow while a search goes on.

A block of the merged order has few lines of each of many ranks: to read them by themselves would take longer than to
search them. The first stretch is no longer than what is asked for, so that the first hit does not wait for more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

from tui.log.index import LineIndex
from tui.log.search import Pattern

LEAST, MOST = 16 * 1024, 128 * 1024
"""Bytes of the second stretch, and of the longest: what a processor's cache holds is searched up to twice as fast."""
ASKED = 256 * 1024
"""The same where another process is asked for each stretch: being woken for it takes as long as searching little."""
TOGETHER = 4 * 1024 * 1024
"""Bytes of the stretches of all files: they may all be read in the same step."""


class Stretch:
    """Those lines of one file that all patterns fit, as far as it was searched last.

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
        """Which of the lines `first` up to but not including `last` fit. Raises SearchFailed."""
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
