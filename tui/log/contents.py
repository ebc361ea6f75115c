"""What is known of a log: which lines there are to show, what each says, and whose it is."""

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
"""Lines that are kept as text."""


class Contents:
    """The lines of a log at one moment, with whom they blame.

    Args:
        height: Screen rows that the line at a place takes.
    """

    def __init__(self, progress: SearchProgress, height: Callable[[int], int]) -> None:
        self.progress = progress
        self.until = math.inf
        """Lines that came later are not shown, as far as times are known."""
        self.upto = TAIL
        """The first place that is not shown for that."""
        self.blame = Blame()
        self.failing: frozenset[int] = frozenset()
        """Entries of the lines in which the culprits failed."""
        self._height = height
        self._decoded: LRUCache[int, PaintedLine] = LRUCache(DECODED)
        self.take(progress)

    def take(self, progress: SearchProgress) -> None:
        """Hold what is known now."""
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
        """Whether lines begin with whose they are: there are several ranks to tell apart."""
        self.label_width = max(map(len, labels)) if self.prefixed else 0

    @property
    def choice(self) -> LogFilter:
        """Which lines are chosen."""
        return self.progress.work.rows.choice

    def line(self, place: int) -> PaintedLine:
        """What a line says."""
        if place >= TAIL:
            return self._tails[place - TAIL][1]
        log = self.progress.work.log
        entry = log.order.items[place]
        line = self._decoded.get(entry)
        if line is None:
            line = self._decoded[entry] = PaintedLine(log.read(entry))
        return line

    def source(self, place: int) -> LogSource:
        """Whose a line is."""
        log = self.progress.work.log
        return self._tails[place - TAIL][0] if place >= TAIL else log.source_of(log.order.items[place])

    def role(self, place: int) -> str:
        """How the rank of a line is marked: it failed or is awaited, or suffers from that, or is not to blame."""
        blame = self.blame
        if blame.attempt != self.progress.work.log.attempt:
            return ""
        rank = self.source(place).rank
        if rank in blame.culprits:
            return "awaited" if blame.stalled else "failed"
        return "victim" if rank in blame.victims else ""

    def fails_at(self, place: int) -> bool:
        """Whether a culprit failed in this line."""
        return bool(self.failing) and place < TAIL and self.progress.work.log.order.items[place] in self.failing
