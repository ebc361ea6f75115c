"""Draws the rows of a log: prefix with host and rank, marked hits, scroll bar."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

from rich.segment import Segment
from rich.style import Style

from tui.log.contents import Contents
from tui.log.search import Pattern
from tui.log.view import LogViewState
from tui.theme import look

MARKING = 0.1
"""Seconds of CPU time per drawing for marking hits; hits beyond that stay unmarked."""


class RowPainter:
    """Paints rows, one screen row at a time.

    Args:
        component: Returns the colours of a component class, blended with its background.
        labels: Returns the colours of labels; hosts take them in turn.
    """

    def __init__(
        self, contents: Contents, component: Callable[[str], Style], labels: Callable[[], list[Style]]
    ) -> None:
        self._contents = contents
        self._component = component
        self._find_labels = labels
        self._labels: list[Style] = []
        self._base = Style()
        self._styles: dict[str, Style] = {}
        self._inks: dict[str, Style] = {}
        self._marking = MARKING
        self._unmarked: Pattern | None = None

    def begin(self, base: Style) -> None:
        """Start a drawing on a background."""
        if base != self._base:
            self.forget_styles()
            self._base = base
        self._marking = MARKING

    def forget_styles(self) -> None:
        """Drop the cached colours."""
        # Cached, because Textual computes them again after every refresh, which takes longer than drawing lines.
        self._styles.clear()
        self._inks.clear()
        self._labels.clear()

    def row(self, view: LogViewState, at: tuple[int, int], width: int, *, cursor: bool, ranged: bool) -> list[Segment]:
        """One screen row, without its bar.

        Args:
            at: The row, and which screen row of it.
            width: Cells of the whole widget.
        """
        row, part = at
        base = self._base
        if cursor or ranged:
            base += Style(bgcolor=self._style("cursor" if cursor else "range").bgcolor)
        place = self._contents.lines.place(row)
        if not part and self._contents.fails_at(place):
            sign = Segment("▶", self._ink(self._contents.role(place)))
        else:
            sign = Segment("▌" if cursor else "┃" if ranged else " ", self._ink("gutter"))
        segments = [sign, *self._prefix(row, part, width), *self._body(view, place, part, width)]
        return list(Segment.apply_style(segments, base))

    def blank(self, width: int) -> Segment:
        """A row after the last."""
        return Segment(" " * width, self._base)

    def words(self, text: str) -> tuple[Segment, Style]:
        """The text shown without lines, and the style of the rest of its row."""
        style = self._base + self._ink("empty")
        return Segment(f"  {text}", style), style

    def bar(self, *, thumb: bool) -> Segment:
        """A cell of the scroll bar in the last column."""
        return Segment("┃" if thumb else " ", self._base + self._ink("thumb" if thumb else "bar"))

    def text_width(self, width: int) -> int:
        """Cells for the text of a line in a widget of this width."""
        return max(2, width - 2 - self._prefix_width(width))

    def _body(self, view: LogViewState, place: int, part: int, width: int) -> list[Segment]:
        line = self._contents.line(place)
        marks = self._marks(view.find, line.text)
        if view.wrap:
            return line.wrapped(part, self.text_width(width), marks)
        return line.scrolled(view.x, self.text_width(width), marks)

    def _marks(self, find: Pattern | None, text: str) -> list[tuple[int, int, Style]]:
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

    def _prefix(self, row: int, part: int, screen: int) -> list[Segment]:
        contents, width = self._contents, self._prefix_width(screen)
        if not width:
            return []
        lines = contents.lines
        count = lines.rows.count(row) if contents.choice.fold and row < lines.count else 1
        place = lines.place(row)
        source, role = contents.source(place), contents.role(place)
        label = "" if part else source.label
        if len(label) > width - 3 - self._count_width:
            label = "…" + label[-(width - 4 - self._count_width) :]
        self._labels = self._labels or self._find_labels()
        node = self._ink(role) if role else self._labels[source.node % len(self._labels)]
        mark = look(role).glyph if role in ("failed", "awaited") and not part else " "
        times = f" ×{count}" if count > 1 and not part else ""
        return [
            Segment(label.ljust(width - 3 - self._count_width), node),
            Segment(times.ljust(self._count_width), self._ink("count")),
            Segment(f"{mark}│ ", self._ink("bar") if mark == " " else node),
        ]

    @property
    def _count_width(self) -> int:
        return 1 + len(f"×{len(self._contents.progress.work.log.sources)}") if self._contents.choice.fold else 0

    def _prefix_width(self, width: int) -> int:
        if not self._contents.prefixed:
            return 0
        return min(self._contents.label_width, max(4, width // 4)) + self._count_width + 3

    def _style(self, part: str) -> Style:
        """A part's colours, blended with its background."""
        if part not in self._styles:
            self._styles[part] = self._component(f"log-lines--{part}")
        return self._styles[part]

    def _ink(self, part: str) -> Style:
        if part not in self._inks:
            style = self._style(part)
            self._inks[part] = Style(color=style.color, bold=style.bold)
        return self._inks[part]
