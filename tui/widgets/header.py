"""The line at the top of every screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widget import Widget

from runner.ids import short
from runner.text import clean
from tui.theme import state_words


class HeaderBar(Widget):
    """One line: subject, facts, and at the right the state. Facts that do not fit are left out."""

    DEFAULT_CSS = """
    HeaderBar {
        height: 1;
        dock: top;
        padding: 0 1;
        background: $panel;
        color: $foreground;
        text-wrap: nowrap;
    }
    """

    ALLOW_SELECT = False

    def __init__(self, title: str = "disttui") -> None:
        super().__init__()
        self._title = title
        self._facts: tuple[str, ...] = ()
        self._state = ""
        self._right = ""

    def show(self, title: str, facts: Sequence[str] = (), state: str = "", right: str = "") -> None:
        """Set the texts; nothing is drawn if they are unchanged.

        Args:
            title: Name of the run, profile or screen.
            facts: The most important first.
            state: A word that `tui.theme.look` knows, shown with its glyph and colour.
            right: Text at the right end, such as the elapsed time.
        """
        words = short(clean(title)), tuple(map(clean, facts)), clean(state), clean(right)
        if words != (self._title, self._facts, self._state, self._right):
            self._title, self._facts, self._state, self._right = words
            self.refresh()

    def render(self) -> Content:
        """Draw title and facts from the left, the state at the right."""
        right = Content.assemble(
            state_words(self._state) if self._state else "",
            "  " if self._state and self._right else "",
            (self._right, "$foreground"),
        )
        room = self.size.width - right.cell_length - 2
        left = Content.styled(self._title, "bold $accent").truncate(max(8, room), ellipsis=True)
        for index, fact in enumerate(self._facts):
            more = Content.styled(("  " if index == 0 else " · ") + fact, "$muted")
            if left.cell_length + more.cell_length > room:
                break
            left = Content.assemble(left, more)
        gap = max(1, self.size.width - left.cell_length - right.cell_length)
        return Content.assemble(left, " " * gap, right)
