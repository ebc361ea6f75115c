"""Rows with a cursor under one line of heads: the base of the panes of `top`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from tui.keys import MOVES, OPEN, VIEW, bind
from tui.theme import RAMP_CLASSES, STATE_CLASSES
from tui.widgets.drawn import Drawn, Piece, line

Item = TypeVar("Item")


class Sort(NamedTuple, Generic[Item]):
    """A way to order rows."""

    name: str
    """Also the title of its column."""
    key: Callable[[Item], object]
    """What is compared; the largest comes first."""


class RowsPane(Drawn, Generic[Item]):
    """A subclass gives the rows in their order, and draws the head and one row."""

    can_focus = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "top--quiet", "top--rest", "top--strong", "top--cursor", "top--cursor-far", "top--mark", "top--sorted",
        "top--trend",
        *STATE_CLASSES, *RAMP_CLASSES,
    }  # fmt: skip
    DEFAULT_CSS = """
    RowsPane {
        & > .top--quiet { color: $muted; }
        & > .top--rest { color: $rule; }
        & > .top--strong { text-style: bold; }
        & > .top--mark { color: $accent; }
        & > .top--trend { color: $ramp-0; }
        & > .top--sorted { color: $accent; }
        & > .top--cursor { background: $selected; }
        & > .top--cursor-far { background: $surface; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("top.open", "enter", "open", "open", "only what the cursor is on: one host, one GPU", group=OPEN),
        bind("top.sort", "s", "sort(1)", "sort", "by the next column", group=VIEW),
        bind("top.sort_back", "S", "sort(-1)", "sort back", "by the column before", group=VIEW, show=False),
        bind("top.turn", "v", "turn", "reverse", "the other way round", group=VIEW, show=False),
        *MOVES,
    ]
    SORTS: ClassVar[Sequence[Sort[object]]] = ()

    class Opened(Message):
        """A row was opened."""

        def __init__(self, pane: RowsPane[object], key: str) -> None:
            super().__init__()
            self.pane, self.key = pane, key

        @property
        def control(self) -> RowsPane[object]:
            """The pane."""
            return self.pane

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.items: list[Item] = []
        self.sorted_by = 0
        self.turned = False
        self.words: list[str] = []
        """Only rows that hold all of them are shown."""
        self._cursor = 0
        self._chosen = False
        self._top = 0
        self._styles: dict[str, Style] = {}

    # What a subclass gives

    def key_of(self, item: Item) -> str:
        """Names a row; the cursor stays on it when rows come and go."""
        raise NotImplementedError

    def ordered(self) -> list[Item]:
        """The rows to show, in their order."""
        raise NotImplementedError

    def head(self, width: int) -> list[Piece]:
        """The line of heads."""
        raise NotImplementedError

    def row(self, item: Item, width: int) -> list[Piece]:
        """One row."""
        raise NotImplementedError

    # What it does

    @property
    def here(self) -> Item | None:
        """The row under the cursor."""
        return self.items[self._cursor] if self._cursor < len(self.items) else None

    def paint(self, name: str) -> Style:
        """The colours of a component class, looked up once per drawing."""
        if name not in self._styles:
            self._styles[name] = self.component(name)
        return self._styles[name]

    def settle(self) -> None:
        """Arrange anew; a cursor that was moved stays on its row, else it stays at the top."""
        key = self.key_of(self.here) if self.here is not None and self._chosen else ""
        self.items = self.ordered()
        keys = [self.key_of(item) for item in self.items]
        self._cursor = (
            keys.index(key) if key in keys else max(0, min(self._cursor, len(keys) - 1)) if self._chosen else 0
        )
        self._keep_in_sight()
        self.redraw()

    def filter(self, text: str) -> None:
        """Show only rows that hold every word of `text`."""
        self.words = text.casefold().split()
        self.settle()

    def fits(self, *texts: str) -> bool:
        """Whether a row of these texts holds all words of the filter."""
        text = " ".join(texts).casefold()
        return all(word in text for word in self.words)

    def by_choice(self, items: Sequence[Item]) -> list[Item]:
        """Items in the chosen order; those without the number come last."""
        return sorted(items, key=self.SORTS[self.sorted_by].key, reverse=not self.turned)  # type: ignore[arg-type]

    @property
    def sort_words(self) -> str:
        """`by cpu ▾`."""
        return f"by {self.SORTS[self.sorted_by].name} {'▴' if self.turned else '▾'}"

    def title(self, text: str) -> Piece:
        """A head, marked where the rows are ordered by it."""
        name = self.SORTS[self.sorted_by].name
        return text, self.paint("top--sorted" if text.strip() == name else "top--quiet")

    def draw(self, width: int, height: int) -> list[Strip]:
        """The head and the rows in sight."""
        self._styles = {}
        if not self.items or width < 20:
            return []
        strips = [line(["  ", *self.head(width - 2)])]
        for index in range(self._top, min(len(self.items), self._top + height - 1)):
            here = index == self._cursor
            mark = ("› ", self.paint("top--mark")) if here and self.has_focus else "  "
            strip = line([mark, *self.row(self.items[index], width - 2)]).adjust_cell_length(width)
            if here:
                # Under what the row has of its own, so that states keep their colours.
                strip = strip.apply_style(self.paint("top--cursor" if self.has_focus else "top--cursor-far"))
            strips.append(strip)
        return strips

    def rows(self, width: int) -> int:
        """A line per row and one for the head."""
        return len(self.items) + 1

    def _keep_in_sight(self) -> None:
        page = max(1, self.size.height - 1)
        self._top = max(0, min(max(self._cursor - page + 1, min(self._top, self._cursor)), len(self.items) - page))

    def go(self, index: int) -> None:
        """Put the cursor on a row."""
        self._cursor = max(0, min(index, len(self.items) - 1))
        self._chosen = self._cursor > 0
        self._keep_in_sight()
        self.redraw()

    def on_resize(self, event: events.Resize) -> None:
        """Draw for the new size, the cursor in sight."""
        super().on_resize(event)
        self._keep_in_sight()

    def on_focus(self) -> None:
        """Draw the cursor strong."""
        self.redraw()

    def on_blur(self) -> None:
        """Draw the cursor weak."""
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the pointer is; a double click opens, one on a head sorts."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            self._sort_at(offset.x)
        elif self._top + offset.y - 1 < len(self.items):
            self.go(self._top + offset.y - 1)
            if event.chain == 2:
                self.action_open()

    def on_mouse_scroll_down(self) -> None:
        """Three rows down."""
        self.go(self._cursor + 3)

    def on_mouse_scroll_up(self) -> None:
        """Three rows up."""
        self.go(self._cursor - 3)

    def _sort_at(self, x: int) -> None:
        at = 2
        for piece in self.head(self.size.width - 2):
            text = piece if isinstance(piece, str) else piece[0]
            names = [index for index, sort in enumerate(self.SORTS) if sort.name == text.strip()]
            if at <= x < at + len(text) and names:
                self.turned = not self.turned if names[0] == self.sorted_by else False
                self.sorted_by = names[0]
                self.settle()
                return
            at += len(text)

    def action_sort(self, by: int) -> None:
        """Order by another column."""
        self.sorted_by = (self.sorted_by + by) % len(self.SORTS)
        self.turned = False
        self.settle()

    def action_turn(self) -> None:
        """Turn the order round."""
        self.turned = not self.turned
        self.settle()

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if self.here is not None:
            self.post_message(self.Opened(self, self.key_of(self.here)))  # type: ignore[arg-type]

    def action_cursor_down(self) -> None:
        """One row down."""
        self.go(self._cursor + 1)

    def action_cursor_up(self) -> None:
        """One row up."""
        self.go(self._cursor - 1)

    def action_page_down(self) -> None:
        """A page down."""
        self.go(self._cursor + max(1, self.size.height - 2))

    def action_page_up(self) -> None:
        """A page up."""
        self.go(self._cursor - max(1, self.size.height - 2))

    def action_first(self) -> None:
        """To the first row."""
        self.go(0)

    def action_last(self) -> None:
        """To the last row."""
        self.go(len(self.items) - 1)
