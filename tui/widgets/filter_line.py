"""The line for words that rows must have, above the keys of a screen."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from tui.keys import VIEW, bind


class _Words(Input):
    PLACE = "the filter"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("filter.keep", "enter", "submit", "keep", "back to the rows that have these words", group=VIEW),
    ]


class FilterLine(Horizontal):
    """`/ filter pair`: shown while words are typed, and as long as they leave rows out."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("filter.drop", "escape", "drop", "all rows", "back to all rows", group=VIEW),
    ]
    DEFAULT_CSS = """
    FilterLine {
        display: none;
        height: 1;
        & > Static { width: auto; padding: 0 1; color: $accent; }
        & > Input { width: 1fr; margin: 0 1 0 0; }
        &.-on { display: block; }
        &:focus-within > Static { text-style: bold; }
    }
    """

    class Changed(Message):
        """Rows must have other words."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Left(Message):
        """The rows get the keys again."""

    def compose(self) -> ComposeResult:
        """Yield sign and words."""
        yield Static("/ filter")
        yield _Words(placeholder="words to look for", id="filter")

    def on_click(self) -> None:
        """Take words, also where the sign before them is clicked."""
        self.query_one(Input).focus()

    def open(self) -> None:
        """Take words."""
        self.add_class("-on")
        self.query_one(Input).focus()

    def drop(self) -> bool:
        """Leave no row out; whether words could be typed or were kept."""
        shown = self.has_class("-on")
        self.query_one(Input).value = ""
        self.remove_class("-on")
        return shown

    def action_drop(self) -> None:
        """Leave no row out, and leave the line."""
        self.drop()
        self.post_message(self.Left())

    def on_input_changed(self, event: Input.Changed) -> None:
        """Pass the words on."""
        event.stop()
        self.post_message(self.Changed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the words; without any there is nothing to keep."""
        event.stop()
        self.set_class(bool(event.value), "-on")
        self.post_message(self.Left())
