"""The question before something that cannot be undone."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from runner.text import clean, clean_lines
from tui.keys import bind
from tui.screens.base import DisttuiModal


class ConfirmScreen(DisttuiModal[bool]):
    """Asks once and says what will happen. The safe answer has the focus; `y` and `n` answer too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("confirm.yes", "y", "answer(True)", "do it"),
        bind("confirm.no", "n,escape,q", "answer(False)", "leave it as it is"),
        bind("confirm.other", "left,right,h,l,tab", "other", "the other answer", show=False, priority=True),
    ]
    AUTO_FOCUS = "#no"

    def __init__(self, question: str, consequence: str, yes: str) -> None:
        super().__init__()
        self._question = clean(question)
        self._consequence = clean_lines(consequence)
        self._yes = clean(yes)

    def compose(self) -> ComposeResult:
        """Question, consequence, two answers."""
        with VerticalScroll(classes="box", can_focus=False):
            yield Static(Content.styled(self._question, "bold"))
            yield Static(Content(self._consequence), classes="quiet")
            with Horizontal(classes="answers"):
                yield Button(Content.assemble(self._yes, (" y", "$muted")), id="yes", compact=True)
                yield Button(Content.assemble("cancel", (" n", "$muted")), id="no", compact=True)

    def action_answer(self, answer: bool) -> None:
        """Take the answer."""
        self.dismiss(answer)

    def action_other(self) -> None:
        """Go to the other button."""
        self.focus_next()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button is an answer."""
        self.dismiss(event.button.id == "yes")
