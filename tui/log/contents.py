"""The contents of a log as far as they are known: the lines to show, their texts, and their ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from rich.cells import cell_len, get_character_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.strip import Strip

from disttui.tui.log.ansi import Run, runs
from disttui.tui.log.engine import SearchProgress
from disttui.tui.log.merge import LogSource
from disttui.tui.log.rows import LogFilter
from disttui.tui.log.sources import Blame, place_at
from disttui.tui.log.view import TAIL, Lines

SHOWN = 4096
"""Maximum number of characters shown of a line; copying takes all of them."""
CUT = Style(italic=True, dim=True)


class PaintedLine:
    """One line, ready to be drawn at any width."""

    def __init__(self, raw: bytes) -> None:
        whole = runs(raw)
        length = sum(len(text) for text, _ in whole)
        self.runs = _expand(_crop(whole, SHOWN) if length > SHOWN else whole)
        if length > SHOWN:
            self.runs.append((f" … {length - SHOWN:,} more characters; o opens the file", CUT))
        self.text = "".join(text for text, _ in self.runs)
        self.ascii = self.text.isascii()
        self.cells = len(self.text) if self.ascii else cell_len(self.text)
        self._breaks: tuple[int, list[int]] = (0, [])

    def breaks(self, width: int) -> list[int]:
        """The start of each screen row of the wrapped line, in characters, and the end of the line."""
        if self._breaks[0] != width:
            self._breaks = (width, self._break(max(1, width)))
        return self._breaks[1]

    def height(self, width: int) -> int:
        """Number of screen rows of the wrapped line."""
        return len(self.breaks(width)) - 1

    def _break(self, width: int) -> list[int]:
        length = len(self.text)
        if self.ascii:
            return [*range(0, max(1, length), width), length]
        breaks, used = [0], 0
        for at, character in enumerate(self.text):
            size = get_character_cell_size(character)
            if used + size > width and at > breaks[-1]:
                breaks.append(at)
                used = 0
            used += size
        return [*breaks, length]

    def segments(self, begin: int, end: int, marks: Sequence[tuple[int, int, Style]]) -> list[Segment]:
        """The characters from `begin` to `end`; the styles of `marks` (begin, end, style) override their own."""
        cuts = {begin, end}
        cuts.update(edge for low, high, _ in marks for edge in (low, high) if begin < edge < end)
        found: list[Segment] = []
        ends = accumulate(len(text) for text, _ in self.runs)
        for (text, style), stop in zip(self.runs, ends, strict=True):
            start = stop - len(text)
            low, high = max(start, begin), min(stop, end)
            if low >= high:
                continue
            for a, b in pairwise(sorted({low, high, *(cut for cut in cuts if low < cut < high)})):
                over = next((mark for first, last, mark in marks if first <= a < last), None)
                both = over if style is None else style if over is None else style + over
                found.append(Segment(text[a - start : b - start], both))
        return found

    def wrapped(self, part: int, width: int, marks: Sequence[tuple[int, int, Style]]) -> list[Segment]:
        """Screen row number `part` of the wrapped line, padded to `width` cells."""
        begin, end = self.breaks(width)[part : part + 2]
        return self._padded(self.segments(begin, end, marks), end - begin, width)

    def scrolled(self, x: int, width: int, marks: Sequence[tuple[int, int, Style]]) -> list[Segment]:
        """The part that starts at cell `x`, `width` cells wide; `›` marks a line that continues."""
        more = self.cells > x + width
        shown = width - more
        if self.ascii:
            end = min(x + shown, len(self.text))
            found = self._padded(self.segments(x, end, marks), end - x, shown)
        else:
            whole = Strip(self.segments(0, len(self.text), marks))
            found = list(whole.crop(x, x + shown).adjust_cell_length(shown))
        return [*found, Segment("›", CUT)] if more else found

    def _padded(self, found: list[Segment], characters: int, width: int) -> list[Segment]:
        used = max(0, characters) if self.ascii else sum(segment.cell_length for segment in found)
        return [*found, Segment(" " * (width - used))] if used < width else found


def _crop(whole: list[Run], length: int) -> list[Run]:
    kept: list[Run] = []
    for text, style in whole:
        kept.append((text[:length], style))
        length -= len(text)
        if length <= 0:
            break
    return kept


def _expand(whole: list[Run]) -> list[Run]:
    """Expand tabs to the next multiple of eight columns."""
    if not any("\t" in text for text, _ in whole):
        return list(whole)
    column, expanded = 0, []
    for text, style in whole:
        out = []
        for piece in text.replace("\t", "\0\t\0").split("\0"):
            shown = " " * (8 - column % 8) if piece == "\t" else piece
            column += cell_len(shown)
            out.append(shown)
        expanded.append(("".join(out), style))
    return expanded


DECODED = 2048
"""Maximum number of lines kept as decoded text."""


class Contents:
    """The lines of a log at one moment, and the ranks to blame.

    Args:
        height: Returns the number of screen rows of the line at a place.
    """

    def __init__(self, progress: SearchProgress, height: Callable[[int], int]) -> None:
        self.progress = progress
        self.until = math.inf
        """Unix time (s) after which lines are hidden, if their times are known."""
        self.upto = TAIL
        """The first place that is hidden because of `until`."""
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
        """Whether lines begin with host and rank, because there are several ranks."""
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
        log = self.progress.work.log
        return self._tails[place - TAIL][0] if place >= TAIL else log.source_of(log.order.items[place])

    def role(self, place: int) -> str:
        """The role of a line's rank: "failed", "blocking", "victim", or empty."""
        blame = self.blame
        if blame.attempt != self.progress.work.log.attempt:
            return ""
        rank = self.source(place).rank
        if rank in blame.culprits:
            return "blocking" if blame.stalled else "failed"
        return "victim" if rank in blame.victims else ""

    def fails_at(self, place: int) -> bool:
        """Whether this is the line where a culprit failed."""
        return bool(self.failing) and place < TAIL and self.progress.work.log.order.items[place] in self.failing
