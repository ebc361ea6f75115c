"""The lines of the merged order that a view shows, found block by block, so that the first appear quickly."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, count

from disttui.tui.log.index import LineIndex
from disttui.tui.log.merge import BLOCK, LINE, SHIFT
from disttui.tui.log.search import Pattern, SearchFailed
from disttui.tui.log.sources import AttemptLog

LEAST, MOST = 16 * 1024, 128 * 1024
"""Bytes of the second stretch, and of the longest: data that fits the processor's cache is searched twice as fast."""
ASKED = 256 * 1024
"""Bytes of the longest stretch that another process searches: waking it takes as long as a short search."""
TOGETHER = 4 * 1024 * 1024
"""Maximum bytes of the stretches of all files together, because one step may read all of them."""


class Stretch:
    """The lines of one file that match all patterns, cached for the stretch searched last.

    Args:
        patterns: At least one pattern.
        files: Number of files that are searched like this one.
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
        data = index.chunk(first, last)
        found: Sequence[int] = self._patterns[0].lines(index, first, last, data)
        for pattern in self._patterns[1:]:
            if found:
                found = sorted(set(found).intersection(pattern.lines(index, first, last, data)))
        self._begin, self._end, self._found = first, last, found


@dataclass(frozen=True)
class LogFilter:
    """The choice of lines to show."""

    ranks: frozenset[int] | None = None
    """The ranks whose lines are shown; None for all."""
    patterns: tuple[Pattern, ...] = ()
    """Patterns that a line must all match."""
    fold: bool = False
    """Whether a line that several ranks wrote in succession is shown only once."""

    @property
    def everything(self) -> bool:
        """Whether every line is a row."""
        return self.ranks is None and not self.patterns and not self.fold


class Rows:
    """The chosen lines, as places in the merged order. One thread takes steps; any thread may read.

    Args:
        start: The place to begin at; places before it are tried last.
    """

    def __init__(self, log: AttemptLog, choice: LogFilter, start: int = 0) -> None:
        self.choice = choice
        self.counts = array("Q")
        """Number of lines that each row represents, only with `fold`."""
        self.scanned = start
        """All places from `start` up to this one have been tried."""
        self._log = log
        self.start = start
        """Where the search began."""
        self.problem = ""
        """Why the search has failed; empty if it has not."""
        self._scanned_before = 0
        self._after = array("Q")
        self._before = array("Q")
        self._group: tuple[bytes, set[int]] = (b"", set())
        self._stretches: dict[int, Stretch] = {}

    def __len__(self) -> int:
        return self.scanned if self.choice.everything else len(self._before) + len(self._after)

    def __getitem__(self, row: int) -> int:
        """The place of a row's line, or of its first line."""
        if self.choice.everything:
            return row
        return self._before[row] if row < len(self._before) else self._after[row - len(self._before)]

    @property
    def complete(self) -> bool:
        """Whether all places have been tried, or the search has failed."""
        return bool(self.problem) or (self.scanned == len(self._log.order) and self._scanned_before == self.start)

    def row_at(self, place: int) -> int:
        """The first row at or after a place, or `len(self)`."""
        if self.choice.everything:
            return min(place, self.scanned)
        if place < self.start:
            return bisect_left(self._before, place)
        return len(self._before) + bisect_left(self._after, place)

    def row_with(self, place: int) -> int:
        """The row for a place; with `fold`, the row into which it was folded."""
        if self.choice.fold:
            return max(0, bisect_right(self._after, place) - 1)
        return self.row_at(place)

    def after(self, place: int) -> int | None:
        """The place of the first row found so far at or after a place, or None."""
        for part in (self._before, self._after):
            at = bisect_left(part, place)
            if at < len(part):
                return part[at]
        return None

    def before(self, place: int) -> int | None:
        """The place of the last row found so far before a place, or None."""
        for part in (self._after, self._before):
            at = bisect_left(part, place)
            if at:
                return part[at - 1]
        return None

    def count(self, row: int) -> int:
        """The number of lines that a row represents."""
        return self.counts[row] if self.choice.fold and row < len(self.counts) else 1

    def step(self) -> bool:
        """Try one more block; return False if none remains."""
        try:
            return not self.problem and self._step()
        except SearchFailed as failure:
            self.problem = str(failure)
            return True

    def _step(self) -> bool:
        total = len(self._log.order)
        if self.scanned < total:
            upto = min(total, self.scanned - self.scanned % BLOCK + BLOCK)
            if not self.choice.everything:
                self._add(self._after, self.scanned, upto)
            self.scanned = upto
            return True
        if self._scanned_before < self.start:
            upto = min(self.start, self._scanned_before + BLOCK)
            self._add(self._before, self._scanned_before, upto)
            self._scanned_before = upto
            return True
        return False

    def _add(self, found: array[int], first: int, last: int) -> None:
        block = self._log.order.items[first:last]
        spans = self._log.order.spans(first, last)
        if self.choice.ranks is not None:
            ranks = self.choice.ranks
            spans = {number: span for number, span in spans.items() if self._log.sources[number].rank in ranks}
        fits = {number: self._search(number, *span) for number, span in spans.items()}
        if self.choice.fold:
            self._fold(block, first, fits)
        elif len(fits) == 1 and block[-1] - block[0] == len(block) - 1:
            (lines,) = fits.values()
            shift = first - (block[0] & LINE)
            found.extend([line + shift for line in lines])
        elif any(fits.values()):
            wanted = {(number << SHIFT) + line for number, lines in fits.items() for line in lines}
            found.extend(compress(count(first), map(wanted.__contains__, block)))

    def _search(self, number: int, first: int, last: int) -> Sequence[int]:
        """The lines of one source that match all patterns."""
        if not self.choice.patterns:
            return range(first, last)
        stretch = self._stretches.get(number)
        if stretch is None:
            sources = self._log.sources
            stretch = Stretch(sources[number].index, self.choice.patterns, len(sources))
            self._stretches[number] = stretch
        return stretch.lines(first, last)

    def _fold(self, block: array[int], first: int, fits: dict[int, Sequence[int]]) -> None:
        texts: dict[int, bytes] = {}
        for number, lines in fits.items():
            if lines:
                index = self._log.sources[number].index
                begin, end = lines[0], lines[-1] + 1
                split = index.split(index.chunk(begin, end), begin, end)
                texts.update(((number << SHIFT) + line, split[line - begin]) for line in lines)
        text, sources = self._group
        for place, entry in enumerate(block, first):
            one = texts.get(entry)
            if one is None:
                continue
            source = entry >> SHIFT
            if self.counts and one == text and source not in sources:
                sources.add(source)
                self.counts[-1] += 1
            else:
                text, sources = one, {source}
                self.counts.append(1)
                self._after.append(place)
        self._group = (text, sources)
