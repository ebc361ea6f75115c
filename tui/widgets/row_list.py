"""Rows below a head, with a cursor, an order and a filter: the base of tables and of lists of live figures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.scrollbar import ScrollBar
from textual.strip import Strip

from disttui.runner.text import clean
from disttui.tui.widgets.drawn import Drawn, Piece, line

Item = TypeVar("Item")
WHEEL = 3
"""Rows per step of the mouse wheel."""


class Sort(NamedTuple, Generic[Item]):
    """A way to order rows."""

    name: str
    """The name, which is also the title of its column."""
    key: Callable[[Item], Any]
    """The sort key; the largest value comes first."""
    words: str | None = None
    """The description in the pane's title; None for `by name ▾`."""


class RowList(Drawn, Generic[Item]):
    """A list of rows. A subclass orders the rows, draws the head and a row, and binds keys to the actions."""

    can_focus = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--cursor", "rows--cursor-far"}
    DEFAULT_CSS = """
    RowList {
        & > .rows--cursor { background: $selected; }
        & > .rows--cursor-far { background: $surface; }
    }
    """
    SORTS: ClassVar[Sequence[Sort[Any]]] = ()
    QUIET_CURSOR: ClassVar[bool] = False
    """Whether the cursor is only a colour, visible only with the focus, because the rows have no cells for a mark."""
    CLINGS: ClassVar[bool] = False
    """Whether the cursor follows its row even before it is moved; otherwise it stays at the top until then."""
    BAR: ClassVar[bool] = False
    """Whether there is a scroll bar; the wheel then scrolls the rows instead of moving the cursor."""

    class Opened(Message):
        """A row was opened."""

        def __init__(self, pane: RowList[Any], key: str) -> None:
            super().__init__()
            self.pane, self.key = pane, key

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.items: list[Item] = []
        self.sorted_by = 0
        self.turned = False
        self.words: list[str] = []
        """Words of the filter; only rows that contain all of them are shown."""
        self._cursor = 0
        self._chosen = False
        self.top = 0
        """Index of the first row on the screen."""
        self._scrolled = False
        """Whether the rows were scrolled away from the cursor; moving the cursor scrolls back to it."""
        self._dragging = False

    # Defined by a subclass

    @abstractmethod
    def key_of(self, item: Item) -> str:
        """The identity of a row, by which the cursor follows it."""

    @abstractmethod
    def ordered(self) -> list[Item]:
        """The rows to show, in the chosen order."""

    @abstractmethod
    def head(self, width: int) -> list[Piece]:
        """The head: the titles of the columns."""

    @abstractmethod
    def row(self, item: Item, width: int) -> list[Piece]:
        """The pieces of one row, without the cells before it."""

    # Behaviour

    @property
    def here(self) -> Item | None:
        """The row under the cursor."""
        return self.items[self._cursor] if self._cursor < len(self.items) else None

    def settle(self) -> None:
        """Sort and filter again; a cursor that was moved stays on its row, otherwise it stays at the top."""
        clings = self._chosen or self.CLINGS
        key = self.key_of(self.here) if self.here is not None and clings else ""
        self.items = self.ordered()
        keys = [self.key_of(item) for item in self.items]
        self._cursor = keys.index(key) if key in keys else max(0, min(self._cursor, len(keys) - 1)) if clings else 0
        self._keep_in_sight()
        self.redraw()

    def filter(self, text: str) -> None:
        """Show only rows that contain every word of `text`."""
        self.words = text.casefold().split()
        self.settle()

    def fits(self, *texts: str) -> bool:
        """Whether a row with these texts contains all words of the filter."""
        text = " ".join(texts).casefold()
        return all(word in text for word in self.words)

    def by_choice(self, items: Sequence[Item]) -> list[Item]:
        """The items in the chosen order."""
        return sorted(items, key=self.SORTS[self.sorted_by].key, reverse=not self.turned)

    @property
    def sort_words(self) -> str:
        """The order as text, such as `by cpu ▾`."""
        sort = self.SORTS[self.sorted_by]
        return sort.words if sort.words is not None else f"by {sort.name} {'▴' if self.turned else '▾'}"

    @property
    def filter_words(self) -> str:
        """The filter as text, such as `filter 'bob'`; empty without one."""
        return f"filter {clean(' '.join(self.words))!r}" if self.words else ""

    def title(self, text: str) -> Piece:
        """The title of a column, marked if the rows are ordered by it."""
        name = self.SORTS[self.sorted_by].name
        return text, self.component("accent" if text.strip() == name else "muted")

    def lead(self, item: Item, *, here: bool) -> Piece:
        """The two cells before a row; `here` if the cursor is on it and the list has the focus."""
        return ("› ", self.component("accent")) if here else "  "

    def draw(self, width: int, height: int) -> list[Strip]:
        if height < 1:
            return []
        whole, lead, quiet = width, 0 if self.QUIET_CURSOR else 2, self.QUIET_CURSOR
        width -= self._barred(height)
        strips = [line([" " * lead, *self.head(width - lead)])]
        for index in range(self.top, min(len(self.items), self.top + height - 1)):
            item, here = self.items[index], index == self._cursor
            mark = "" if quiet else self.lead(item, here=here and self.has_focus)
            strip = line([mark, *self.row(item, width - lead)]).adjust_cell_length(width)
            if here and (self.has_focus or not quiet):
                # Applied below the row's own styles, so that states keep their colours.
                strip = strip.apply_style(self.component("rows--cursor" if self.has_focus else "rows--cursor-far"))
            strips.append(strip)
        if self.words and not self.items:
            strips.append(self.none_left())
        if width < whole:
            bar = self._bar(height)
            strips = [Strip([*strip.adjust_cell_length(width), cell]) for strip, cell in zip(strips, bar, strict=False)]
        return strips

    def none_left(self) -> Strip:
        """The line shown if the filter hides every row."""
        return line([("  no matching rows", self.component("muted"))])

    def _barred(self, height: int) -> bool:
        """Whether a scroll bar is shown at a height."""
        return self.BAR and len(self.items) >= height

    def _bar(self, height: int) -> list[Segment]:
        background = self.background_colors[0] + self.styles.scrollbar_background
        colour = background + self.styles.scrollbar_color
        bar = ScrollBar.renderer.render_bar(
            height, len(self.items) + 1, height, self.top, 1, True, background.rich_color, colour.rich_color
        )
        plain = Style(color=None)
        return [Segment(one.text, (one.style or plain).clear_meta_and_links()) for one in bar.segments]

    def rows(self, width: int) -> int:
        """One line per row, and one for the head."""
        return max(len(self.items), bool(self.words)) + 1

    def _keep_in_sight(self) -> None:
        page = max(1, self.size.height - 1)
        top = self.top if self._scrolled else max(self._cursor - page + 1, min(self.top, self._cursor))
        self.top = max(0, min(top, len(self.items) - page))

    def _scroll(self, top: int) -> None:
        """Scroll to other rows, without moving the cursor."""
        self._scrolled, self.top = True, top
        self._keep_in_sight()
        self.redraw()

    def go(self, index: int) -> None:
        """Put the cursor on a row."""
        self._scrolled = False
        self._cursor = max(0, min(index, len(self.items) - 1))
        self._chosen = self._cursor > 0
        self._keep_in_sight()
        self.redraw()

    def on_resize(self, event: events.Resize) -> None:
        """Redraw for the new size, with the cursor visible."""
        super().on_resize(event)
        self._keep_in_sight()
        self.redraw()

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """Put the cursor under the pointer; open the row on a double click, sort on a click on the head."""
        offset = event.get_content_offset(self)
        if offset is None or self._on_bar(offset.x):
            return
        if offset.y == 0:
            self.sort_at(offset.x)
        elif self.top + offset.y - 1 < len(self.items):
            self.go(self.top + offset.y - 1)
            if not self.row_clicked(offset.x) and event.chain == 2:
                self.action_open()

    def row_clicked(self, x: int) -> bool:
        """Handle a click on the row under the cursor at cell `x`; return True if a double click must not open it."""
        return False

    def _on_bar(self, x: int) -> bool:
        return self._barred(self.size.height) and x >= self.size.width - 1

    def on_mouse_down(self, event: events.MouseDown) -> None:
        offset = event.get_content_offset(self)
        if event.button == 1 and offset is not None and self._on_bar(offset.x):
            self._dragging = True
            self.capture_mouse()
            self._drag(offset.y)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragging:
            self._drag(event.get_content_offset_capture(self).y)

    def on_mouse_up(self) -> None:
        if self._dragging:
            self._dragging = False
            self.release_mouse()

    def _drag(self, y: int) -> None:
        """Show the rows around the one at row `y` of the scroll bar."""
        page = max(1, self.size.height - 1)
        self._scroll(y * len(self.items) // page - page // 2)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self._turn_wheel(WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._turn_wheel(-WHEEL)

    def _turn_wheel(self, by: int) -> None:
        if self.BAR:
            self._scroll(self.top + by)
        else:
            self.go(self._cursor + by)

    def sort_at(self, x: int) -> None:
        """Order by the column at cell `x` of the head, or reverse the order if it is by that column already."""
        at = 0 if self.QUIET_CURSOR else 2
        for piece in self.head(self.size.width - at):
            text = piece if isinstance(piece, str) else piece[0]
            names = [index for index, sort in enumerate(self.SORTS) if sort.name == text.strip()]
            if at <= x < at + len(text) and names:
                self.turned = not self.turned if names[0] == self.sorted_by else False
                self.sorted_by = names[0]
                self.settle()
                return
            at += len(text)

    def action_sort(self, by: int) -> None:
        self.sorted_by = (self.sorted_by + by) % len(self.SORTS)
        self.turned = False
        self.settle()

    def action_turn(self) -> None:
        self.turned = not self.turned
        self.settle()

    def action_open(self) -> None:
        if self.here is not None:
            self.post_message(self.Opened(self, self.key_of(self.here)))

    def action_move(self, by: int) -> None:
        self.go(self._cursor + by)

    def action_page(self, by: int) -> None:
        self.go(self._cursor + by * max(1, self.size.height - 2))

    def action_edge(self, last: bool) -> None:
        self.go(len(self.items) - 1 if last else 0)
