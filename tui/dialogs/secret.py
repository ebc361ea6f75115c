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


class SecretScreen(Question[str]):
    """Asks for something that is not shown. An empty answer gives up."""

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
            words = (("enter", "bold $accent"), " send   ", ("esc", "bold $accent"), " give up   kept nowhere")
            yield Static(Content.assemble(*words), classes="quiet")

    def action_give_up(self) -> None:
        """Answer with nothing."""
        self.dismiss("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the answer."""
        self.dismiss(event.value)
