"""Yes-or-no questions: before an action of the user that cannot be undone, and whether to trust a host."""

from __future__ import annotations

import re
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from runner.text import clean, clean_lines
from tui.dialogs.question import Question
from tui.keys import bind

_NAMED = re.compile(r"^(?:[+-] )?\S+:(?= )", re.MULTILINE)
"""What a line is about, in a consequence of several lines: without it, wrapped lines read as one paragraph."""


class ConfirmScreen(Question[bool]):
    """Asks once and says what will happen. The safe answer has the focus; `y` and `n` answer, too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("confirm.yes", "y", "answer(True)", "do it"),
        bind("confirm.no", "n,escape,q", "answer(False)", "leave it as it is"),
        bind("confirm.other", "left,right,h,l,tab", "other", "the other answer", show=False, priority=True),
        bind("confirm.down", "down,j", "scroll(1)", "down", show=False),
        bind("confirm.up", "up,k", "scroll(-1)", "up", show=False),
    ]
    AUTO_FOCUS = "#no"
    KEYS: ClassVar[tuple[str, str]] = ("y", "n")
    """The keys that the buttons show."""

    def __init__(self, question: str, consequence: str, yes: str) -> None:
        super().__init__()
        # The user decides by the text: what only looks like a secret is shown.
        self._question = clean(question, guesses=False)
        self._consequence = clean_lines(consequence, guesses=False)
        self._yes = clean(yes)

    def compose(self) -> ComposeResult:
        """Yield the question, the consequence and two answers."""
        with VerticalScroll(classes="box", can_focus=False):
            yield Static(Content.styled(self._question, "bold"))
            yield Static(Content(self._consequence).highlight_regex(_NAMED, style="$foreground"), classes="quiet")
            with Horizontal(classes="answers"):
                for name, word, key in zip(("yes", "no"), (self._yes, "cancel"), self.KEYS, strict=True):
                    yield Button(Content.assemble(word, (f" {key}", "$muted")), id=name, compact=True)

    def action_answer(self, answer: bool) -> None:
        """Take the answer."""
        self.dismiss(answer)

    def action_scroll(self, rows: int) -> None:
        """Scroll a text that is longer than the terminal."""
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_other(self) -> None:
        """Focus the other button."""
        self.focus_next()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Take a button as the answer."""
        if self.heeds(event):
            self.dismiss(event.button.id == "yes")


class TrustScreen(ConfirmScreen, inherit_bindings=False):
    """Asks whether to trust a host's word. No printable key is an answer."""

    UNINVITED = True
    KEYS = ("^t", "esc")
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("trust.yes", "ctrl+t", "answer(True)", "trust"),
        bind("trust.no", "escape", "answer(False)", "do not trust"),
        bind("trust.other", "left,right,tab", "other", "the other answer", show=False, priority=True),
        bind("trust.down", "down", "scroll(1)", "down", show=False),
        bind("trust.up", "up", "scroll(-1)", "up", show=False),
    ]
