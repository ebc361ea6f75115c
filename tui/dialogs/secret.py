"""The question for a password or passphrase."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from runner.text import clean
from tui.dialogs.question import Question
from tui.keys import bind
from tui.widgets.hints import Hints, Key


class SecretScreen(Question[str]):
    """Asks for an answer that is not shown. An empty answer gives up."""

    UNINVITED = True
    BINDINGS: ClassVar[list[BindingType]] = [bind("secret.give_up", "escape", "give_up", "give up")]

    def __init__(self, host: str, question: str) -> None:
        super().__init__()
        self._host = clean(host)
        self._question = clean(question)

    def compose(self) -> ComposeResult:
        """Host, question, input."""
        with VerticalScroll(classes="box", can_focus=False):
            yield Static(Content.assemble((self._host, "bold"), "  ", self._question))
            yield Input(password=True, classes="answer")
            yield Hints(Key("enter", "enter", "send"), Key("escape", "esc", "give up"), after="kept nowhere")

    def action_give_up(self) -> None:
        """Give an empty answer."""
        self.dismiss("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the answer."""
        self.dismiss(event.value)
