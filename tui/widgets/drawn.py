"""A widget that draws itself line by line, and repaints only the cells that have changed."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, chop_cells
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.style import Style as VisualStyle
from textual.widget import Widget

from disttui.tui.theme import COLOURS, LOUD

if TYPE_CHECKING:
    from typing_extensions import Self

_NO_STYLE = Style()


class Drawn(Widget):
    """Base of panes that draw lines: a subclass defines `draw`, and calls `redraw` when its content has changed.

    It cannot be an ABC, because Textual's widgets have their own metaclass; mypy rejects a subclass without `draw`.
    """

    ALLOW_SELECT = False

    _strips: list[Strip] | None = None
    _title = ""
    _only_title = False
    _colours: dict[str, Style] | None = None

    @abstractmethod
    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the lines, at most `height` of them."""

    def rows(self, width: int) -> int:
        """The number of lines needed at a width, for panes whose height is `auto`."""
        return 1

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self.rows(width)

    def component(self, name: str) -> Style:
        """The style of a component class, or of a name in `disttui.tui.theme.COLOURS`."""
        # Cached, because Textual recomputes them after every refresh.
        if self._colours is None:
            self._colours = {}
        if name not in self._colours:
            self._colours[name] = self._shared(name) or self.get_component_rich_style(name, partial=True)
        return self._colours[name]

    def _shared(self, name: str) -> Style | None:
        # Not component classes, because Textual would match the rules of each in each widget whenever a class changes.
        if name not in COLOURS:
            return None
        variable = "foreground" if self.app.no_color and name in LOUD else COLOURS[name]
        ground = self._of_theme("selected") if name == "selected" else None
        return Style(color=self._of_theme(variable), bgcolor=ground) if variable else Style(bold=True)

    def _of_theme(self, variable: str) -> RichColor:
        return Color.parse(self.app.theme_variables[variable]).rich_color

    def set_title(self, *words: str) -> None:
        """Set the title in the border; it must be clean, and is never parsed as markup."""
        title = "   ".join(word for word in words if word)
        if title != self._title:
            self._title = title
            self._only_title = True
            self.border_title = Content(title)
            self._only_title = False

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Repaint; a new title repaints only its own line, not the whole pane."""
        if self._only_title:
            offset = self.content_offset
            regions = (Region(-offset.x, -offset.y, self.outer_size.width, 1),)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def redraw(self) -> None:
        """Draw the lines, and repaint the cells that have changed."""
        if self._strips is None:
            self.refresh()
            return
        before, self._strips = self._strips, self._drawn()
        changed = []
        blank = Strip.blank(0)
        for y, (old, new) in enumerate(zip_longest(before, self._strips, fillvalue=blank)):
            if old != new:
                start, end = _changed(old, new)
                changed.append(Region(start, y, max(1, end - start), 1))
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        if self._strips is None:
            self._strips = self._drawn()
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self.rich_style)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips = self._colours = None

    def on_resize(self, event: events.Resize) -> None:
        self._strips = None
        self.refresh()

    def _drawn(self) -> list[Strip]:
        width, height = self.size
        base = self.rich_style
        return [strip.adjust_cell_length(width).apply_style(base) for strip in self.draw(width, height)[:height]]


Piece = str | tuple[str, Style]


def cells(pieces: Iterable[Piece]) -> int:
    """The total width of pieces, in cells."""
    return sum(cell_len(piece if isinstance(piece, str) else piece[0]) for piece in pieces)


def line(pieces: Iterable[Piece]) -> Strip:
    """Make a strip of pieces, whose texts must be clean."""
    return Strip(
        [Segment(piece, _NO_STYLE) if isinstance(piece, str) else Segment(*piece) for piece in pieces if piece]
    )


def part(content: Content, value: object) -> Content:
    """A text that can be clicked, with the value of `clicked`."""
    return content.stylize(VisualStyle.from_meta({"part": value}))


def clicked(event: events.Click) -> Any:
    """The value of the `part` that was clicked, or None."""
    return event.style.meta.get("part")


def _changed(old: Strip, new: Strip) -> tuple[int, int]:
    """The range of cells (begin, end) outside of which two strips are equal."""
    start = _same(old, new, reverse=False)
    end = max(old.cell_length, new.cell_length)
    if old.cell_length == new.cell_length:
        end -= _same(old, new, reverse=True)
    return (start, end) if end > start else (0, max(old.cell_length, new.cell_length))


def _same(old: Strip, new: Strip, *, reverse: bool) -> int:
    pairs = zip(reversed(list(old)), reversed(list(new)), strict=False) if reverse else zip(old, new, strict=False)
    cells = 0
    for one, other in pairs:
        if one != other:
            break
        cells += one.cell_length
    return cells


INDENT = "  "
"""Indentation of continuation lines."""
QUOTE = "│ "
"""The margin of quoted output, also of its continuation lines."""


POINTER = re.compile(r"│ [ ~]*\^[ ~^]*")
"""A line of a traceback that only underlines the one above it."""


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    """Wrap lines to `width` (at least 10) cells: at a blank, or else after a slash, or else anywhere.

    Pointers that do not fit are omitted, because they would point at nothing.
    """
    found = []
    for text in lines:
        if cell_len(text) > width and POINTER.fullmatch(text):
            continue
        margin = QUOTE if text.startswith(QUOTE) else ""
        rest = text[len(margin) :]
        while cell_len(rest) > width - len(margin):
            cut = _cut(rest, len(chop_cells(rest, width - len(margin))[0]))
            found.append(margin + rest[:cut].rstrip())
            rest = INDENT + rest[cut:].lstrip()
        found.append(margin + rest)
    return found


def _cut(text: str, width: int) -> int:
    """The index at which to break a text that is too long; never within its indentation, which would not shorten it."""
    begin = len(text) - len(text.lstrip()) + len(INDENT) + 1
    blank = text.rfind(" ", begin, width + 1)
    if blank > 0 and (blank > width // 2 or len(text[blank + 1 :].split(" ", 1)[0]) <= width - len(INDENT)):
        return blank
    slash = text.rfind("/", begin, width)
    return slash + 1 if slash > 0 else blank if blank > 0 else width
