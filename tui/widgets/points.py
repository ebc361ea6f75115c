"""Lists of points: a mark or label, and text that wraps beside it, not below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.css.styles import RulesMap
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual
from textual.widgets import Static

from disttui.runner.text import clean
from disttui.tui.keys import MOVE, bind

_LEAST = 20
"""Minimum cells for the text beside the mark; with fewer, it wraps below the mark."""


class Point(NamedTuple):
    """A paragraph. A plain string is cleaned; a `Content` must be clean."""

    text: str | Content
    style: str = ""
    mark: str = ""
    """Text before the first line."""
    mark_style: str | None = None
    """None for the style of the text."""
    hang: int | None = None
    """Indentation of further lines in cells; None for the width of the mark."""

    @property
    def plain(self) -> str:
        """The text for copying."""

        return self.mark + clean(str(self.text))

    def lines(self, width: int) -> list[Content]:
        """Wrap the point to a width in cells."""
        mark = Content.styled(self.mark, self.style if self.mark_style is None else self.mark_style)
        text = self.text if isinstance(self.text, Content) else Content.styled(clean(self.text), self.style)
        indent = cell_len(self.mark) if self.hang is None else self.hang
        if width - indent < _LEAST:
            return mark.append(text).wrap(max(1, width))
        first, *rest = text.wrap(width - cell_len(self.mark))
        if rest and indent != cell_len(self.mark):
            left = text.plain[len(first) :].lstrip()
            rest = text[len(text) - len(left) :].wrap(width - indent)
        return [mark.append(first), *(Content(" " * indent).append(line) for line in rest)]


class Points(Visual):
    """Several points, one below the other."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points
        self._laid_out: tuple[int, Content] = (0, Content())

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        return self._at(width).render_strips(width, height, style, options)

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return max((cell_len(point.plain) for point in self._points), default=0)

    def get_minimal_width(self, rules: RulesMap) -> int:
        return 1

    def get_height(self, rules: RulesMap, width: int) -> int:
        return self._at(width).get_height(rules, width) if self._points else 0

    def _at(self, width: int) -> Content:
        if self._laid_out[0] != width:
            self._laid_out = width, Content("\n").join(line for point in self._points for line in point.lines(width))
        return self._laid_out[1]


class Pages(VerticalScroll, can_focus=True):
    """Points that scroll if they do not fit."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("pane.down", "j,down", "scroll_down", "down", group=MOVE, show=False),
        bind("pane.up", "k,up", "scroll_up", "up", group=MOVE, show=False),
        bind("pane.first", "g,home", "scroll_home", "first", group=MOVE, show=False),
        bind("pane.last", "G,end", "scroll_end", "last", group=MOVE, show=False),
    ]
    DEFAULT_CSS = "Pages { scrollbar-size: 1 1; }"

    def __init__(self, id: str | None = None) -> None:
        super().__init__(Static(), id=id)
        self.plain = ""
        """The text for copying."""
        self._points: list[Point] = []

    def show(self, points: Iterable[Point]) -> None:
        """Replace the points if they have changed."""
        shown = list(points)
        if shown == self._points:
            return
        self._points = shown
        self.plain = "".join(f"{point.plain}\n" for point in shown)
        self.query_one(Static).update(Points(shown))

    def scroll_to_point(self, index: int) -> None:
        """Show a point in the middle."""
        width = self.query_one(Static).size.width
        row = sum(len(point.lines(width)) for point in self._points[:index])
        self.scroll_to(y=max(0, row - self.size.height // 2), animate=False)
