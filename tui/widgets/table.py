"""Rows below a head: columns that fit the width, a cursor, a filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from runner.text import clean
from tui.keys import MOVES, OPEN, bind
from tui.theme import RAMP_CLASSES, STATE_CLASSES, look

Cell = str | Sequence[tuple[str, str]]
"""A text, or parts of (text, component class); the class may be empty."""


class Column(NamedTuple):
    """A column of a table."""

    title: str
    align: Literal["left", "right"] = "left"
    rank: int = 0
    """With too little room, the columns with the highest rank are left out first."""
    most: int = 40
    """Its greatest width in cells."""
    grows: bool = False
    """Whether it takes the room that is left."""
    whole: bool = False
    """Whether it keeps its width when there is little room: text to type or copy is useless when cut off."""


class Row(NamedTuple):
    """A row of a table."""

    key: str
    """Identifies the row in messages; the cursor follows it."""
    cells: Sequence[Cell]


def state_cell(word: str) -> Cell:
    """Glyph and word of a state, in its colour."""
    seen = look(word)
    return [(f"{seen.glyph} {word}", seen.css)]


class Table(ScrollView, can_focus=True):
    """A list to choose from."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("table.open", "enter", "open", "open", "open what the cursor is on", group=OPEN),
        *MOVES,
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--head", "table--cursor", "table--cursor-far", "table--muted", "table--strong",
        *STATE_CLASSES, *RAMP_CLASSES,
    }  # fmt: skip
    DEFAULT_CSS = """
    Table { height: 1fr; scrollbar-size: 1 1; overflow-x: hidden; }
    Table > .table--head { color: $muted; }
    Table > .table--muted { color: $muted; }
    Table > .table--strong { text-style: bold; }
    Table > .table--cursor-far { background: $surface; }
    Table > .table--cursor { background: $selected; color: $selected-text; }
    """
    ALLOW_SELECT = False
    GAP = 2

    class RowMessage(Message):
        """Something about a row."""

        def __init__(self, table: Table, key: str) -> None:
            super().__init__()
            self.table, self.key = table, key

        @property
        def control(self) -> Table:
            """The table."""
            return self.table

    class Opened(RowMessage):
        """A row was opened, by key or double click."""

    class Highlighted(RowMessage):
        """The cursor went to another row; `key` is empty without one."""

    class HeadClicked(Message):
        """The head of a column was clicked."""

        def __init__(self, table: Table, column: int) -> None:
            super().__init__()
            self.table, self.column = table, column

        @property
        def control(self) -> Table:
            """The table."""
            return self.table

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._columns = list(columns)
        self._all: list[Row] = []
        self._rows: list[Row] = []
        self._cursor = 0
        self._filter: list[str] = []
        self._marked: set[str] = set()
        self._grown = [0] * len(columns)
        self._widths = [0] * len(columns)

    @property
    def key(self) -> str:
        """Key of the row under the cursor; empty without one."""
        return self._rows[self._cursor].key if self._rows else ""

    @property
    def marked(self) -> frozenset[str]:
        """Keys of the marked rows, shown or not."""
        return frozenset(self._marked)

    def mark(self) -> None:
        """Mark or unmark the row under the cursor, and go to the next."""
        if self.key:
            self._marked ^= {self.key}
            self.refresh()
            self._go(self._cursor + 1)

    def unmark(self) -> None:
        """Mark no row."""
        if self._marked:
            self._marked.clear()
            self.refresh()

    @property
    def count(self) -> int:
        """Number of rows shown."""
        return len(self._rows)

    @property
    def all(self) -> int:
        """Number of all rows, shown or not."""
        return len(self._all)

    def show(self, rows: Sequence[Row], columns: Sequence[Column] | None = None) -> None:
        """Replace the rows; nothing is drawn if they are unchanged."""
        if columns is not None and list(columns) != self._columns:
            self._columns = list(columns)
            self._grown, self._widths = [0] * len(columns), [0] * len(columns)
        elif rows == self._all:
            return
        self._all = list(rows)
        self._marked &= {row.key for row in rows}
        self._settle()

    def filter(self, text: str) -> None:
        """Show only rows that contain every word of `text`."""
        words = text.casefold().split()
        if words != self._filter:
            self._filter = words
            self._settle()

    def select(self, key: str) -> None:
        """Put the cursor on a row."""
        for index, row in enumerate(self._rows):
            if row.key == key:
                self._go(index)

    def _settle(self) -> None:
        """Filter the rows again, and keep the cursor on its row."""
        before, self._rows = self.key, [row for row in self._all if self._fits(row)]
        keys = [row.key for row in self._rows]
        self._cursor = keys.index(before) if before in keys else max(0, min(self._cursor, len(keys) - 1))
        for index, width in enumerate(self._natural()):
            # Columns never get narrower, so that changing numbers do not move other columns.
            self._grown[index] = max(self._grown[index], width)
        self._lay_out()
        if self.key != before:
            self.post_message(self.Highlighted(self, self.key))

    def _fits(self, row: Row) -> bool:
        text = " ".join(_plain(cell) for cell in row.cells).casefold()
        return all(word in text for word in self._filter)

    def _natural(self) -> list[int]:
        return [
            min(column.most, max([cell_len(column.title), *(_width(row.cells[index]) for row in self._all)]))
            for index, column in enumerate(self._columns)
        ]

    def _lay_out(self) -> None:
        room = self.scrollable_content_region.width - 3
        shown = {index for index, width in enumerate(self._grown) if width}
        while len(shown) > 1 and self._needed(shown) > room:
            shown.discard(max(shown, key=lambda index: (self._columns[index].rank, index)))
        self._widths = [width if index in shown else 0 for index, width in enumerate(self._grown)]
        for index in [index for index in shown if self._columns[index].grows][:1]:
            self._widths[index] = self._least(index) + max(0, room - self._needed(shown))
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._rows) + 1)
        self.refresh()

    def _needed(self, shown: set[int]) -> int:
        return sum(map(self._least, shown)) + self.GAP * (len(shown) - 1)

    def _least(self, index: int) -> int:
        column, grown = self._columns[index], self._grown[index]
        return min(grown, 12) if column.grows and not column.whole else grown

    def render_line(self, y: int) -> Strip:
        """The head, or a row."""
        width = self.scrollable_content_region.width
        if y == 0:
            cells: Sequence[Cell] = [[(column.title, "table--head")] for column in self._columns]
            return self._strip(cells, width, self.rich_style, "  ")
        index = self.scroll_offset.y + y - 1
        if index >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        here = index == self._cursor
        base = self.rich_style
        if here:
            base += self.get_component_rich_style("table--cursor" if self.has_focus else "table--cursor-far")
        cursor = "›" if here and self.has_focus else " "
        mark = "•" if self._rows[index].key in self._marked else " "
        return self._strip(self._rows[index].cells, width, base, cursor + mark)

    def _strip(self, cells: Sequence[Cell], width: int, base: Style, mark: str) -> Strip:
        accent = self.get_component_rich_style("state--running", partial=True)
        segments = [Segment(mark, base + accent)]
        for cell, cells_wide, column in zip(cells, self._widths, self._columns, strict=True):
            if cells_wide:
                segments += self._cell(cell, cells_wide, column.align, base)
                segments.append(Segment(" " * self.GAP, base))
        return Strip(segments).adjust_cell_length(width, base)

    def _cell(self, cell: Cell, width: int, align: str, base: Style) -> list[Segment]:
        parts = [(cell, "")] if isinstance(cell, str) else cell
        segments, used = [], 0
        for text, css in parts:
            shown = _cut(clean(text), width - used)
            used += cell_len(shown)
            style = base + self.get_component_rich_style(css, partial=True) if css else base
            segments.append(Segment(shown, style))
        pad = Segment(" " * (width - used), base)
        return [pad, *segments] if align == "right" else [*segments, pad]

    def on_resize(self) -> None:
        """Fit the columns to the width."""
        self._lay_out()
        self._go(self._cursor)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor under the pointer; open the row on a double click."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        index = offset.y + self.scroll_offset.y - 1
        if offset.y == 0:
            if (column := self._column_at(offset.x)[0]) >= 0:
                self.post_message(self.HeadClicked(self, column))
        elif 0 <= index < len(self._rows):
            self._go(index)
            column, x = self._column_at(offset.x)
            if not self.cell_clicked(column, x) and event.chain == 2:
                self.action_open()

    def cell_clicked(self, column: int, x: int) -> bool:
        """Handle a click on a cell of the row under the cursor, `x` cells from its left; True if it did."""
        return False

    def _column_at(self, x: int) -> tuple[int, int]:
        """The column at cell `x` (-1: none), and the position within it."""
        at = 2
        for index, width in enumerate(self._widths):
            if width and at <= x < at + width:
                return index, x - at
            at += width + self.GAP if width else 0
        return -1, 0

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if self.key:
            self.post_message(self.Opened(self, self.key))

    def action_cursor_down(self) -> None:
        """One row down."""
        self._go(self._cursor + 1)

    def action_cursor_up(self) -> None:
        """One row up."""
        self._go(self._cursor - 1)

    def action_page_down(self) -> None:
        """A page down."""
        self._go(self._cursor + max(1, self.size.height - 2))

    def action_page_up(self) -> None:
        """A page up."""
        self._go(self._cursor - max(1, self.size.height - 2))

    def action_first(self) -> None:
        """To the first row."""
        self._go(0)

    def action_last(self) -> None:
        """To the last row."""
        self._go(len(self._rows) - 1)

    def _go(self, index: int) -> None:
        before, self._cursor = self._cursor, max(0, min(index, len(self._rows) - 1))
        page = max(1, self.size.height - 1)
        top = self.scroll_offset.y
        wanted = min(max(top, self._cursor - page + 1), self._cursor)
        if wanted != top:
            self.scroll_to(y=wanted, animate=False)
        if self._cursor != before:
            self.refresh(Region(0, 0, self.size.width, self.size.height))
            self.post_message(self.Highlighted(self, self.key))


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else "".join(text for text, _ in cell)


def _width(cell: Cell) -> int:
    return cell_len(clean(_plain(cell)))


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 1 else "…"[:width]
