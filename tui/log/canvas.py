"""The lines of a log on the screen, drawn one by one."""

from __future__ import annotations

import math
from time import thread_time
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.log.blame import Blame
from tui.log.engine import Progress
from tui.log.merge import LogSource
from tui.log.moments import place_at
from tui.log.paint import PaintedLine
from tui.log.rows import LogFilter
from tui.log.search import Pattern
from tui.log.view import TAIL, Lines, LogViewState, chosen, page, pause
from tui.theme import look

NODE_STYLES = 6
MARKING = 0.1
"""Seconds of CPU time that marking what is found may take of one drawing; after that it goes unmarked."""


class LogCanvas(Widget):
    """Draws a view of a log."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "log-lines--cursor",
        "log-lines--range",
        "log-lines--gutter",
        "log-lines--match",
        "log-lines--count",
        "log-lines--bar",
        "log-lines--thumb",
        "log-lines--empty",
        "log-lines--failed",
        "log-lines--awaited",
        "log-lines--victim",
        *(f"log-lines--node-{number}" for number in range(NODE_STYLES)),
    }
    DEFAULT_CSS = """
    LogCanvas {
        height: 1fr;
        & > .log-lines--cursor { background: $boost; }
        &:focus > .log-lines--cursor { background: $primary 30%; }
        & > .log-lines--range { background: $primary 20%; }
        & > .log-lines--gutter { color: $text-accent; text-style: bold; }
        & > .log-lines--match { background: $warning; color: auto 95%; text-style: bold; }
        & > .log-lines--count { color: $text-accent; }
        & > .log-lines--bar { color: $foreground 30%; }
        & > .log-lines--thumb { color: $foreground 50%; }
        & > .log-lines--empty { color: $text-muted; }
        & > .log-lines--failed { color: $text-error; text-style: bold; }
        & > .log-lines--awaited { color: $text-warning; text-style: bold; }
        & > .log-lines--victim { color: $text-muted; }
        & > .log-lines--node-0 { color: $text-primary; }
        & > .log-lines--node-1 { color: $text-warning; }
        & > .log-lines--node-2 { color: $text-secondary; }
        & > .log-lines--node-3 { color: $text-accent; }
        & > .log-lines--node-4 { color: $foreground 80%; }
        & > .log-lines--node-5 { color: $text-success; }
    }
    """

    def __init__(self, progress: Progress, *, name: str | None = None, id: str | None = None) -> None:
        super().__init__(name=name, id=id)
        self.view = LogViewState()
        self.nothing = ""
        """What to say where there are no lines."""
        self._blame = Blame()
        self._failing: frozenset[int] = frozenset()
        """Entries of the lines in which the culprits failed."""
        self._cache: LRUCache[int, PaintedLine] = LRUCache(2048)
        self._page: list[tuple[int, int]] = []
        self._drawn: object = None
        self._base = Style()
        self._styles_of: dict[str, Style] = {}
        self._inks: dict[str, Style] = {}
        self._cursor = 0
        self._chosen = range(0)
        self._thumbs = range(0)
        self._marking = MARKING
        self._unmarked: Pattern | None = None
        self.progress = progress
        self.until = math.inf
        """Lines that came later are not shown, as far as times are known."""
        self.upto = TAIL
        """The first place that is not shown for that."""
        self.take(progress)

    def blame(self, blame: Blame, failing: frozenset[int]) -> None:
        """Mark the lines of those to blame, and where they failed."""
        if (blame, failing) != (self._blame, self._failing):
            self._blame, self._failing = blame, failing
            self.refresh()

    def show_until(self, time: float) -> None:
        """Show no line that came after a time, unix seconds."""
        self.until = time
        self.take(self.progress)

    def take(self, progress: Progress) -> None:
        """Show what is known now."""
        if progress.work.log is not self.progress.work.log:
            self._cache.clear()
        self.progress = progress
        log, rows, count = progress.work.log, progress.work.rows, progress.count
        self.upto = TAIL
        if self.until < math.inf and log.timed:
            self.upto = place_at(log, self.until, progress.total)
            count = min(count, rows.row_at(self.upto))
        # An unfinished line has no time yet.
        self._tails = [(source, PaintedLine(raw)) for source, raw in progress.tails] if self.upto == TAIL else []
        self.lines = Lines(rows, count, len(self._tails), self._height_at)
        sources = log.sources
        ranks = self._choice.ranks
        labels = [source.label for source in sources if ranks is None or source.rank in ranks]
        self.prefixed = len(set(labels)) > 1
        self._label_width = max(map(len, labels)) if self.prefixed else 0
        # While paused nothing on the screen changes: then nothing is sent to the terminal either.
        if self._looks() != self._drawn:
            self.refresh()

    def shown_places(self) -> list[int]:
        """The places of all lines on the screen, without the unfinished ones."""
        rows = dict.fromkeys(row for row, _ in page(self.view, self.lines, self.size.height))
        return [place for row in rows if (place := self.lines.place(row)) < TAIL]

    def chosen_places(self) -> list[int]:
        """The places of the range, or of the cursor's line."""
        return [place for row in chosen(self.paused(), self.lines) if (place := self.lines.place(row)) < TAIL]

    def paused(self) -> LogViewState:
        """The view, staying at what is shown now."""
        return pause(self.view, self.lines, self.size.height, self.progress.total)

    # Drawing

    def render_lines(self, crop: Region) -> list[Strip]:
        """Decide what is shown once for all lines."""
        self._page = page(self.view, self.lines, self.size.height)
        self._thumbs = self._thumb(self._page)
        self._drawn = self._looks()
        if self._base != (base := self.rich_style):
            self._forget_styles()
            self._base = base
        self._marking = MARKING
        here = self.paused()
        self._cursor = self.lines.row(here.cursor)
        self._chosen = range(0) if here.mark is None else chosen(here, self.lines)
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw one screen row."""
        base = self._base
        if not self.lines:
            return self._empty_line(y)
        if y >= len(self._page):
            return Strip([Segment(" " * (self.size.width - 1), base), self._bar(y)])
        row, part = self._page[y]
        cursor, ranged = row == self._cursor, row in self._chosen
        if cursor or ranged:
            base += Style(bgcolor=self._style("cursor" if cursor else "range").bgcolor)
        place = self.lines.place(row)
        if not part and self._failing and place < TAIL and self.progress.work.log.order.items[place] in self._failing:
            sign = Segment("▶", self._ink(self._role(place)))
        else:
            sign = Segment("▌" if cursor else "┃" if ranged else " ", self._ink("gutter"))
        head = [sign, *self._prefix(row, part)]
        whole = Segment.apply_style([*head, *self._body(row, part)], base)
        return Strip([*whole, self._bar(y)], self.size.width)

    def notify_style_update(self) -> None:
        """Draw in the new colours."""
        super().notify_style_update()
        self._forget_styles()

    def _forget_styles(self) -> None:
        # Kept from one drawing to the next: Textual makes them anew after every refresh, which takes longer than lines.
        self._styles_of.clear()
        self._inks.clear()

    def _empty_line(self, y: int) -> Strip:
        style = self._base + self._ink("empty")
        text = ""
        if y == min(1, self.size.height - 1):
            filtered = self._choice.patterns and self.progress.total
            text = "No line fits the filter; esc drops it." if filtered else self.nothing
        return Strip([Segment(f"  {text}", style)]).adjust_cell_length(self.size.width, style)

    def _body(self, row: int, part: int) -> list[Segment]:
        line = self._line(self.lines.place(row))
        marks = self._marks(line.text)
        if self.view.wrap:
            return line.wrapped(part, self.text_width, marks)
        return line.scrolled(self.view.x, self.text_width, marks)

    def _marks(self, text: str) -> list[tuple[int, int, Style]]:
        find = self.view.find
        if find is None or find is self._unmarked:
            return []
        begun = thread_time()
        try:
            spans = find.spans(text, max(0.001, self._marking))
        except TimeoutError:
            self._unmarked = find
            return []
        self._marking -= thread_time() - begun
        style = self._style("match")
        return [(begin, end, style) for begin, end in spans]

    def _prefix(self, row: int, part: int) -> list[Segment]:
        count = self.lines.rows.count(row) if self._choice.fold and row < self.lines.count else 1
        width = self._prefix_width
        if not width:
            return []
        source = self._source(self.lines.place(row))
        label = "" if part else source.label
        if len(label) > width - 3 - self._count_width:
            label = "…" + label[-(width - 4 - self._count_width) :]
        node = self._ink(self._role(self.lines.place(row)) or f"node-{source.node % NODE_STYLES}")
        role = "" if part else self._role(self.lines.place(row))
        mark = look(role).glyph if role in ("failed", "awaited") else " "
        times = f" ×{count}" if count > 1 and not part else ""
        return [
            Segment(label.ljust(width - 3 - self._count_width), node),
            Segment(times.ljust(self._count_width), self._ink("count")),
            Segment(f"{mark}│ ", self._ink("bar") if mark == " " else node),
        ]

    def _role(self, place: int) -> str:
        """How the rank of a line is marked: it failed or is awaited, or suffers from that, or is not to blame."""
        blame, log = self._blame, self.progress.work.log
        if blame.attempt != log.attempt:
            return ""
        rank = self._source(place).rank
        if rank in blame.culprits:
            return "awaited" if blame.stalled else "failed"
        return "victim" if rank in blame.victims else ""

    def _bar(self, y: int) -> Segment:
        """A cell of the last column, which tells what part of the whole is shown."""
        thumb = y in self._thumbs
        return Segment("┃" if thumb else " ", self._base + self._ink("thumb" if thumb else "bar"))

    def _looks(self) -> object:
        """Whatever, besides the view, decides what is drawn: a change of it needs a new drawing."""
        lines = self.lines
        rows = page(self.view, lines, self.size.height)
        places = tuple((lines.place(row), part, lines.rows.count(row)) for row, part in rows)
        tails = self.progress.tails if rows and rows[-1][0] >= lines.count else ()
        return self._choice, self.prefixed, places, tails, self._thumb(rows)

    def _thumb(self, rows: list[tuple[int, int]]) -> range:
        """The rows of the bar in the last column that stand for what is shown; none where all is."""
        height, total = self.size.height, len(self.lines)
        if not rows or rows[-1][0] - rows[0][0] + 1 >= total:
            return range(0)
        low = rows[0][0] * height // total
        return range(low, max(low + 1, -(-(rows[-1][0] + 1) * height // total)))

    def _style(self, part: str) -> Style:
        """A part's colours, blended with what is behind it."""
        if part not in self._styles_of:
            self._styles_of[part] = self.get_component_rich_style(f"log-lines--{part}")
        return self._styles_of[part]

    def _ink(self, part: str) -> Style:
        if part not in self._inks:
            style = self._style(part)
            self._inks[part] = Style(color=style.color, bold=style.bold)
        return self._inks[part]

    @property
    def _choice(self) -> LogFilter:
        return self.progress.work.rows.choice

    @property
    def text_width(self) -> int:
        """Cells for the text of a line."""
        return max(2, self.size.width - 2 - self._prefix_width)

    @property
    def _count_width(self) -> int:
        return 1 + len(f"×{len(self.progress.work.log.sources)}") if self._choice.fold else 0

    @property
    def _prefix_width(self) -> int:
        if not self.prefixed:
            return 0
        return min(self._label_width, max(4, self.size.width // 4)) + self._count_width + 3

    def _line(self, place: int) -> PaintedLine:
        if place >= TAIL:
            return self._tails[place - TAIL][1]
        log = self.progress.work.log
        entry = log.order.items[place]
        line = self._cache.get(entry)
        if line is None:
            line = self._cache[entry] = PaintedLine(log.read(entry))
        return line

    def _source(self, place: int) -> LogSource:
        log = self.progress.work.log
        return self._tails[place - TAIL][0] if place >= TAIL else log.source_of(log.order.items[place])

    def _height_at(self, place: int) -> int:
        return self._line(place).height(self.text_width) if self.view.wrap else 1
