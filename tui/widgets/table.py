"""A table: rows below a head, with columns that fit the width, a cursor and a filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from disttui.runner.text import clean
from disttui.tui.keys import MOVES, OPEN, bind
from disttui.tui.theme import look
from disttui.tui.widgets.drawn import Piece, line
from disttui.tui.widgets.row_list import RowList

Cell = str | Sequence[tuple[str, str]]
"""A text, or parts as (text, component class); the class may be empty."""


class Column(NamedTuple):
    """A column of a table."""

    title: str
    align: Literal["left", "right"] = "left"
    rank: int = 0
    """With too little room, the column with the highest rank is omitted first."""
    most: int = 40
    """Maximum width in cells."""
    grows: bool = False
    """Whether it takes the remaining room."""
    least: int | None = None
    """Width in cells to which it may shrink with little room; None for 12 if it grows, or else its full width."""


class Row(NamedTuple):
    """A row of a table."""

    key: str
    """Identifies the row in messages; the cursor follows it."""
    cells: Sequence[Cell]


def state_cell(word: str) -> Cell:
    """A state's glyph and word in its colour."""
    seen = look(word)
    return [(f"{seen.glyph} {word}", seen.css)]


class Table(RowList[Row]):
    """A table to choose a row from."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("table.open", "enter", "open", "open", "open what the cursor is on", group=OPEN),
        *MOVES,
    ]
    DEFAULT_CSS = """
    Table { width: 1fr; height: 1fr; }
    Table > .rows--cursor { background: $selected; color: $selected-text; }
    """
    CLINGS = True
    BAR = True
    GAP = 2

    class Highlighted(Message):
        """The cursor has moved to another row; `key` is empty without rows."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class HeadClicked(Message):
        """The title of a column was clicked."""

        def __init__(self, table: Table, column: int) -> None:
            super().__init__()
            self.table, self.column = table, column

        @property
        def control(self) -> Table:
            return self.table

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._empty = ""
        """The text shown if there are no rows."""
        self._columns = list(columns)
        self._all: list[Row] = []
        self._marked: set[str] = set()
        self._grown = [0] * len(columns)
        self._widths = [0] * len(columns)

    @property
    def key(self) -> str:
        """Key of the row under the cursor, or empty."""
        return self.here.key if self.here is not None else ""

    @property
    def marked(self) -> frozenset[str]:
        """Keys of the marked rows, including hidden ones."""
        return frozenset(self._marked)

    def mark(self) -> None:
        """Toggle the mark of the row under the cursor, and go to the next row."""
        if self.key:
            self._marked ^= {self.key}
            self.action_move(1)

    def unmark(self) -> None:
        if self._marked:
            self._marked.clear()
            self.redraw()

    @property
    def count(self) -> int:
        """Number of rows shown."""
        return len(self.items)

    @property
    def all(self) -> int:
        """Number of all rows, including hidden ones."""
        return len(self._all)

    def say_where_empty(self, words: str) -> None:
        """Set the text shown if there are no rows."""
        if words != self._empty:
            self._empty = words
            self.redraw()

    def show(self, rows: Sequence[Row], columns: Sequence[Column] | None = None) -> None:
        """Replace the rows and the columns if they have changed."""
        if columns is not None and list(columns) != self._columns:
            self._columns = list(columns)
            self._grown, self._widths = [0] * len(columns), [0] * len(columns)
        elif rows == self._all:
            return
        self._all = list(rows)
        self._marked &= {row.key for row in rows}
        for index, column in enumerate(self._columns):
            natural = max([cell_len(column.title), *(_width(row.cells[index]) for row in rows)])
            # Columns never shrink, so that changing numbers do not move other columns.
            self._grown[index] = max(self._grown[index], min(column.most, natural))
        self.settle()

    def select(self, key: str) -> None:
        """Put the cursor on the row with a key, if it is shown."""
        for index, row in enumerate(self.items):
            if row.key == key:
                self.go(index)

    def key_of(self, item: Row) -> str:
        return item.key

    def ordered(self) -> list[Row]:
        return [row for row in self._all if self.fits(*map(_plain, row.cells))]

    def settle(self) -> None:
        """Filter the rows again, and keep the cursor on its row; post `Highlighted` if that has changed."""
        before, count = self.key, self.count
        super().settle()
        if self.count != count:
            self.refresh(layout=True)
        if self.key != before:
            self.post_message(self.Highlighted(self.key))

    def go(self, index: int) -> None:
        before = self.key
        super().go(index)
        if self.key != before:
            self.post_message(self.Highlighted(self.key))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer `open` only if there is a row."""
        return action != "open" or self.here is not None

    def draw(self, width: int, height: int) -> list[Strip]:
        """Choose the columns, then draw the rows."""
        if self._empty and not self._all:
            return [line([(f"  {self._empty}", self.component("muted"))])]
        self._lay_out(width - 3, barred=self._barred(height))
        return super().draw(width, height)

    def _lay_out(self, room: int, *, barred: bool) -> None:
        # The cell after the room is free or the scroll bar's, so that one row more or less never hides a column; the
        # column that grows leaves a cell free before the bar.
        shown = {index for index, width in enumerate(self._grown) if width}
        left_out: list[int] = []
        while len(shown) > 1 and self._needed(shown) > room:
            left_out.append(max(shown, key=lambda index: (self._columns[index].rank, index)))
            shown.discard(left_out[-1])
        for index in left_out:  # a narrower column of the same rank as the last may fit in its place
            if self._columns[index].rank == self._columns[left_out[-1]].rank and self._needed({*shown, index}) <= room:
                shown.add(index)
        self._widths = [0] * len(self._grown)
        left = max(0, room - barred - self._needed(shown))
        for index in sorted(shown, key=lambda index: self._columns[index].grows):
            full = self._least(index) + left if self._columns[index].grows else self._grown[index]
            self._widths[index] = min(full, self._least(index) + left)
            left -= self._widths[index] - self._least(index)

    def _needed(self, shown: set[int]) -> int:
        return sum(map(self._least, shown)) + self.GAP * (len(shown) - 1)

    def _least(self, index: int) -> int:
        column, grown = self._columns[index], self._grown[index]
        least = column.least or (12 if column.grows else grown)
        return min(grown, least)

    def head(self, width: int) -> list[Piece]:
        return self._pieces([[(column.title, "muted")] for column in self._columns])

    def row(self, item: Row, width: int) -> list[Piece]:
        return self._pieces(item.cells)

    def lead(self, item: Row, *, here: bool) -> Piece:
        """The cursor and the mark of a row."""
        mark = "•" if item.key in self._marked else " "
        return ("›" if here else " ") + mark, self.component("state--running")

    def _pieces(self, cells: Sequence[Cell]) -> list[Piece]:
        pieces: list[Piece] = []
        for cell, width, column in zip(cells, self._widths, self._columns, strict=True):
            if width:
                pieces += [*self._cell(cell, width, column.align), " " * self.GAP]
        return pieces

    def _cell(self, cell: Cell, width: int, align: str) -> list[Piece]:
        pieces: list[Piece] = []
        used = 0
        for text, css in [(cell, "")] if isinstance(cell, str) else cell:
            shown = _cut(clean(text), width - used)
            used += cell_len(shown)
            pieces.append((shown, self.component(css)) if css else shown)
            if shown != clean(text):
                break
        pad = " " * (width - used)
        return [pad, *pieces] if align == "right" else [*pieces, pad]

    def sort_at(self, x: int) -> None:
        if (column := self._column_at(x)[0]) >= 0:
            self.post_message(self.HeadClicked(self, column))

    def row_clicked(self, x: int) -> bool:
        return self.cell_clicked(*self._column_at(x))

    def cell_clicked(self, column: int, x: int) -> bool:
        """Handle a click on a cell of the row under the cursor, `x` cells from its left; return whether it did."""
        return False

    def _column_at(self, x: int) -> tuple[int, int]:
        """The column at cell `x` (-1 if none), and the position within it."""
        at = 2
        for index, width in enumerate(self._widths):
            if width and at <= x < at + width:
                return index, x - at
            at += width + self.GAP if width else 0
        return -1, 0


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else "".join(text for text, _ in cell)


def _width(cell: Cell) -> int:
    return cell_len(clean(_plain(cell)))


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 1 else "…"[:width]
