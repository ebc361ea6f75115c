"""Questions that no key of the user has asked for: where they wait, and when they come up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.widgets import Input, TextArea

from tui.dialogs.question import Question
from tui.key_queue import Typed


class QuestionGate:
    """Keeps questions away from somebody who types.

    A question never comes up over a line that has the focus, nor over another question. It waits until the line is
    left, or until the key that stands in the footer meanwhile calls for it.
    """

    def __init__(self, app: App[None]) -> None:
        self._app = app
        self._waiting: dict[Question[Any], str] = {}
        """What waits, and the host that it is about."""
        self._called = False

    def put(self, host: str, question: Question[Any], answer: Callable[[Any], None]) -> bool:
        """Show a question that comes up by itself, or say that it has to wait: then put it again in a moment.

        Args:
            host: Who asks.
            question: What is asked.
            answer: Gets the answer.
        """
        if isinstance(self._app.screen, Question) or (self._typing and not self._called):
            if question not in self._waiting:
                self._waiting[question] = host
                if self._typing:
                    self._app.notify(f"{self._how()} to answer", title=f"{host} asks something")
                self._app.screen.refresh_bindings()
            return False
        self._called = False
        self._waiting.pop(question, None)
        self._app.push_screen(question, answer)
        return True

    @property
    def waiting(self) -> bool:
        """Whether a question waits."""
        return bool(self._waiting)

    def call(self) -> None:
        """Have the question that waits come up now."""
        self._called = self.waiting

    def ignores(self, event: Typed) -> bool:
        """Whether a key was typed before the question could be read that it would answer."""
        return isinstance(self._app.screen, Question) and not self._app.screen.heeds(event)

    def _how(self) -> str:
        bindings = (active.binding for active in self._app.screen.active_bindings.values())
        key = next((self._app.get_key_display(one) for one in bindings if one.id == "app.answer"), None)
        return f"Press {key}, or leave the line," if key else "Leave the line"

    @property
    def _typing(self) -> bool:
        return isinstance(self._app.focused, Input | TextArea)
