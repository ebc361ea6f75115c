"""When to show questions that no key of the user opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.widgets import Input, TextArea

from tui.dialogs.question import Question
from tui.key_queue import Typed


class QuestionGate:
    """Delays questions while the user types.

    A question never comes up over an input that has the focus, nor over another question. It waits until the input
    loses the focus, or until the user presses the key that the footer shows meanwhile.
    """

    def __init__(self, app: App[None]) -> None:
        self._app = app
        self._waiting: dict[Question[Any], str] = {}
        """Waiting question → the host that it is about."""
        self._called = False

    def put(self, host: str, question: Question[Any], answer: Callable[[Any], None]) -> bool:
        """Show a question, or return False if it has to wait: then call this again a moment later.

        Args:
            host: The host that the question is about.
            question: The dialog to show.
            answer: Called with the answer.
        """
        if isinstance(self._app.screen, Question) or (self._typing and not self._called):
            if question not in self._waiting:
                self._waiting[question] = host
                if self._typing:
                    self._app.notify(f"{self._how()} to answer", title=f"{host} asks something")
                self._app.screen.refresh_bindings()
            return False
        self._called = False
        if self._waiting.pop(question, None):
            self._app.clear_notifications()  # how to come to the question, over its own words
        self._app.push_screen(question, answer)
        return True

    @property
    def waiting(self) -> bool:
        """Whether a question waits."""
        return bool(self._waiting)

    def call(self) -> None:
        """Show the waiting question now."""
        self._called = self.waiting

    def ignores(self, event: Typed) -> bool:
        """Whether a key would answer a question that could not be read yet when it was typed."""
        return isinstance(self._app.screen, Question) and not self._app.screen.heeds(event)

    def _how(self) -> str:
        bindings = (active.binding for active in self._app.screen.active_bindings.values())
        key = next((self._app.get_key_display(one) for one in bindings if one.id == "app.answer"), None)
        return f"Press {key}, or leave the line," if key else "Leave the line"

    @property
    def _typing(self) -> bool:
        return isinstance(self._app.focused, Input | TextArea)
