"""The filter line above the footer of a screen."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from disttui.tui.keys import VIEW, bind


class _Words(Input):
    PLACE = "the filter"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("filter.keep", "enter", "submit", "apply", "back to the matching rows", group=VIEW)
    ]


class FilterLine(Horizontal):
    """The line `/ filter pair`, which is visible while it has the focus or hides rows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("filter.drop", "escape", "drop", "all rows", "show all rows again", group=VIEW)
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
        """The filter text has changed."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Left(Message):
        """The filter has lost the focus."""

    def compose(self) -> ComposeResult:
        yield Static("/ filter")
        yield _Words(placeholder="text to search for", id="filter")

    def on_click(self) -> None:
        """Focus the input, even for a click on its label."""
        self.query_one(Input).focus()

    def open(self) -> None:
        self.add_class("-on")
        self.query_one(Input).focus()

    def drop(self) -> bool:
        """Clear and close the filter; return True if it was open."""
        shown = self.has_class("-on")
        self.query_one(Input).value = ""
        self.remove_class("-on")
        return shown

    def action_drop(self) -> None:
        """Clear and close the filter, and leave it."""
        self.drop()
        self.post_message(self.Left())

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Leave the filter, and close it if it is empty."""
        event.stop()
        self.set_class(bool(event.value), "-on")
        self.post_message(self.Left())
