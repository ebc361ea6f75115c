"""What the five steps have in common."""

from __future__ import annotations

from typing import ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from runner.text import clean
from tui.screens.wizard.draft import Draft, View

Line = str | tuple[str, str]
"""A text, or text and style."""


class Step(Vertical):
    """One step. It shows a `View`, and posts `Changed` when somebody has changed the draft."""

    TITLE: ClassVar[str] = ""
    DEFAULT_CSS = """
    Step { display: none; height: 1fr; }
    Step.-current { display: block; }
    """

    class Changed(Message):
        """Somebody has changed the draft."""

        def __init__(self, draft: Draft) -> None:
            super().__init__()
            self.draft = draft

    class GoOn(Message):
        """Somebody wants the next step."""

    def __init__(self) -> None:
        super().__init__(id=f"step-{type(self).__name__.lower()}")
        self.view: View | None = None

    @property
    def draft(self) -> Draft:
        """The draft as last shown."""
        assert self.view is not None
        return self.view.draft

    def show(self, view: View) -> None:
        """Show this; called again whenever anything has changed."""
        self.view = view

    def enter(self) -> None:
        """Put the focus where one begins."""

    def leave(self) -> str:
        """Why one cannot go on yet; empty where nothing is in the way."""
        return ""


class Notes(Static):
    """Lines about whatever has the cursor, under a rule."""

    DEFAULT_CSS = """
    Notes { height: auto; max-height: 9; padding: 0 1; border-top: solid $rule; color: $muted; overflow-y: auto;
            border-title-color: $foreground; border-title-style: none; scrollbar-size: 1 1; }
    """

    def tell(self, title: str, *lines: Line) -> None:
        """Show other lines; they are cleaned, and never taken as markup."""
        self.border_title = Content(f" {clean(title)} ") if title else ""
        parts: list[Line] = []
        for each in lines:
            text, style = each if isinstance(each, tuple) else (each, "")
            parts += [(clean(text), style), "\n"]
        self.update(Content.assemble(*parts[:-1]))


def count(number: int, word: str) -> str:
    """`1 host`, `2 hosts`, `2 processes`."""
    return f"{number} {word}" + ("" if number == 1 else "es" if word.endswith("s") else "s")
