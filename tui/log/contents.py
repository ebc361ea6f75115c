"""The known contents of a log: the lines to show, their texts, and their ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

from textual.cache import LRUCache

from tui.log.blame import Blame
from tui.log.engine import SearchProgress
from tui.log.merge import LogSource
from tui.log.moments import place_at
from tui.log.paint import PaintedLine
from tui.log.rows import LogFilter
from tui.log.view import TAIL, Lines

DECODED = 2048
"""The most lines kept as decoded text."""


class Contents:
    """The lines of a log at one moment, and the ranks to blame.

    Args:
        height: Screen rows that the line at a place takes.
    """

    def __init__(self, progress: SearchProgress, height: Callable[[int], int]) -> None:
        self.progress = progress
        self.until = math.inf
        """Lines after this unix time are not shown, if their times are known."""
        self.upto = TAIL
        """The first place that is not shown because of `until`."""
        self.blame = Blame()
        self.failing: frozenset[int] = frozenset()
        """Entries of the lines where the culprits failed."""
        self._height = height
        self._decoded: LRUCache[int, PaintedLine] = LRUCache(DECODED)
        self.take(progress)

    def take(self, progress: SearchProgress) -> None:
        """Take the newest state of the engine."""
        if progress.work.log is not self.progress.work.log:
            self._decoded.clear()
        self.progress = progress
        log, rows, count = progress.work.log, progress.work.rows, progress.count
        self.upto = TAIL
        if self.until < math.inf and log.timed:
            self.upto = place_at(log, self.until, progress.total)
            count = min(count, rows.row_at(self.upto))
        # An unfinished line has no time yet.
        self._tails = [(source, PaintedLine(raw)) for source, raw in progress.tails] if self.upto == TAIL else []
        self.lines = Lines(rows, count, len(self._tails), self._height)
        ranks = self.choice.ranks
        labels = [source.label for source in log.sources if ranks is None or source.rank in ranks]
        self.prefixed = len(set(labels)) > 1
        """Whether lines begin with host and rank, because there are several."""
        self.label_width = max(map(len, labels)) if self.prefixed else 0

    @property
    def choice(self) -> LogFilter:
        """The filter that chooses the lines."""
        return self.progress.work.rows.choice

    def line(self, place: int) -> PaintedLine:
        """The text of a line, ready to draw."""
        if place >= TAIL:
            return self._tails[place - TAIL][1]
        log = self.progress.work.log
        entry = log.order.items[place]
        line = self._decoded.get(entry)
        if line is None:
            line = self._decoded[entry] = PaintedLine(log.read(entry))
        return line

    def source(self, place: int) -> LogSource:
        """The source of a line."""
        log = self.progress.work.log
        return self._tails[place - TAIL][0] if place >= TAIL else log.source_of(log.order.items[place])

    def role(self, place: int) -> str:
        """The mark for a line's rank: failed, awaited, victim, or empty."""
        blame = self.blame
        if blame.attempt != self.progress.work.log.attempt:
            return ""
        rank = self.source(place).rank
        if rank in blame.culprits:
            return "awaited" if blame.stalled else "failed"
        return "victim" if rank in blame.victims else ""

    def fails_at(self, place: int) -> bool:
        """Whether this is the line where a culprit failed."""
        return bool(self.failing) and place < TAIL and self.progress.work.log.order.items[place] in self.failing
