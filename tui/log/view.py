"""The state of a log view as one value, and how keys change it. No I/O.

A place is a line's number in the merged order, which never changes. Filters, folds and ranks determine which places
have a row, so the view keeps its line when any of them changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from disttui.tui.log.rows import LogFilter, Rows
from disttui.tui.log.search import Pattern

TAIL = 1 << 62
"""Place of the first unfinished line; unfinished lines come after all others and have no number yet."""


@dataclass(frozen=True)
class LogViewState:
    """The state of a log view."""

    choice: LogFilter = field(default_factory=LogFilter)
    find: Pattern | None = None
    wrap: bool = False
    following: bool = True
    """Whether the end is shown, and stays visible as lines arrive."""
    top: int = 0
    """Place of the first line shown, when not following."""
    skip: int = 0
    """Number of screen rows of that line that are above the screen."""
    x: int = 0
    """Cells scrolled to the right, when not wrapping."""
    cursor: int = 0
    mark: int | None = None
    """Place of the other end of the range; None without a range."""
    seen: int = 0
    """Total number of lines when following ended."""


class Lines:
    """The lines to show at one moment.

    Args:
        count: Number of `rows` to use; another thread appends to them.
        tails: Number of unfinished lines to show after the rows.
        height: Returns the number of screen rows of the line at a place.
    """

    def __init__(self, rows: Rows, count: int, tails: int, height: Callable[[int], int]) -> None:
        self.rows = rows
        self.count = count
        self.tails = tails
        self.height_at = height

    def __len__(self) -> int:
        return self.count + self.tails

    def place(self, row: int) -> int:
        return self.rows[row] if row < self.count else TAIL + row - self.count

    def row(self, place: int) -> int:
        """The row of a place, or the first row after it, or the last row."""
        row = self.count + place - TAIL if place >= TAIL else min(self.rows.row_with(place), self.count)
        return max(0, min(row, len(self) - 1))

    def height(self, row: int) -> int:
        """The number of screen rows of a row."""
        return self.height_at(self.place(row))

    def new_since(self, seen: int) -> int:
        """The number of rows that were added since there were `seen` lines."""
        return max(0, self.count - self.rows.row_at(seen))

    def walk(self, row: int, skip: int, by: int) -> tuple[int, int]:
        """Go `by` screen rows up or down from screen row `skip` of row `row`; stop at either end."""
        skip += by
        while skip < 0 and row > 0:
            row -= 1
            skip += self.height(row)
        while row < len(self) - 1 and skip >= (height := self.height(row)):
            row += 1
            skip -= height
        return row, max(0, min(skip, self.height(row) - 1))


def page(view: LogViewState, lines: Lines, height: int) -> list[tuple[int, int]]:
    """The screen rows to show, from the top, as (row, screen row within it)."""
    if not lines:
        return []
    row, skip = _top(view, lines, height)
    return list(islice(_screen_rows(lines, row, skip), height))


def _screen_rows(lines: Lines, row: int, skip: int) -> Iterator[tuple[int, int]]:
    return ((at, part) for at in range(row, len(lines)) for part in range(skip if at == row else 0, lines.height(at)))


def _last_top(lines: Lines, height: int) -> tuple[int, int]:
    last = len(lines) - 1
    return lines.walk(last, lines.height(last) - 1, 1 - height)


def _top(view: LogViewState, lines: Lines, height: int) -> tuple[int, int]:
    last_top = _last_top(lines, height)
    if view.following:
        return last_top
    row = lines.row(view.top)
    # Skip screen rows only of the line itself, not of the row that is shown because the line has none.
    skip = min(view.skip, lines.height(row) - 1) if lines.place(row) == view.top else 0
    return min((row, skip), last_top)


def follow(view: LogViewState) -> LogViewState:
    """Show the end, and keep showing it."""
    return replace(view, following=True, mark=None)


def pause(view: LogViewState, lines: Lines, height: int, total: int) -> LogViewState:
    """Stay at the lines shown now while new lines arrive; `total` is the current number of lines."""
    if not view.following or not lines:
        return view
    row, skip = _last_top(lines, height)
    last = lines.place(len(lines) - 1)
    return replace(view, following=False, top=lines.place(row), skip=skip, cursor=last, seen=total)


def scroll(view: LogViewState, lines: Lines, height: int, by: int) -> LogViewState:
    """Scroll by screen rows; the cursor stays on its line."""
    if not lines:
        return view
    row, skip = min(lines.walk(*_top(view, lines, height), by), _last_top(lines, height))
    return replace(view, top=lines.place(row), skip=skip)


def move(view: LogViewState, lines: Lines, height: int, by: int) -> LogViewState:
    """Move the cursor by lines; scroll if it would leave the screen."""
    if not lines:
        return view
    row = max(0, min(lines.row(view.cursor) + by, len(lines) - 1))
    return go(view, lines, height, lines.place(row))


def go(view: LogViewState, lines: Lines, height: int, place: int, *, middle: bool = False) -> LogViewState:
    """Put the cursor on a place and scroll it into view; if `middle`, to the middle unless it was visible."""
    if not lines:
        return replace(view, cursor=place)
    view = replace(view, cursor=place)
    row = lines.row(place)
    top = _top(view, lines, height)
    if (row, 0) >= top and lines.walk(*top, height - 1) >= (row, min(lines.height(row), height) - 1):
        return view
    if middle:
        top = lines.walk(row, 0, -(height // 2))
    elif (row, 0) < top:
        top = (row, 0)
    else:
        top = lines.walk(row, min(lines.height(row), height) - 1, 1 - height)
    row, skip = min(top, _last_top(lines, height))
    return replace(view, top=lines.place(row), skip=skip)


def on_screen(view: LogViewState, lines: Lines, height: int) -> bool:
    """Whether the cursor's line is visible."""
    return bool(lines) and lines.row(view.cursor) in {row for row, _ in page(view, lines, height)}


def chosen(view: LogViewState, lines: Lines) -> range:
    """The rows of the range, or the cursor's row without a range."""
    if not lines:
        return range(0)
    ends = [lines.row(view.cursor), lines.row(view.cursor if view.mark is None else view.mark)]
    return range(min(ends), max(ends) + 1)
