"""Questions that no key of the user has asked for: where they wait, and when they come up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual import events
from textual.widgets import Input, TextArea

from tui.dialogs.question import Question
from tui.opening import Opening


class Questions(Opening):
    """The part of the app that keeps questions away from somebody who types.

    A question never comes up over a line that has the focus, nor over another question. It waits until the line is
    left, or until the key that stands in the footer meanwhile calls for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[Question[Any], str] = {}
        """What waits, and the host that it is about."""
        self._called = False

    def put_question(self, host: str, question: Question[Any], answer: Callable[[Any], None]) -> bool:
        """Show a question that comes up by itself, or say that it has to wait: then put it again in a moment.

        Args:
            host: Who asks.
            question: What is asked.
            answer: Gets the answer.
        """
        if isinstance(self.screen, Question) or (self._typing and not self._called):
            if question not in self._waiting:
                self._waiting[question] = host
                if self._typing:
                    self.notify(f"{self._how()} to answer", title=f"{host} asks something")
                self.screen.refresh_bindings()
            return False
        self._called = False
        self._waiting.pop(question, None)
        self.push_screen(question, answer)
        return True

    def _how(self) -> str:
        bindings = (active.binding for active in self.screen.active_bindings.values())
        key = next((self.get_key_display(one) for one in bindings if one.id == "app.answer"), None)
        return f"Press {key}, or leave the line," if key else "Leave the line"

    @property
    def _typing(self) -> bool:
        return isinstance(self.focused, Input | TextArea)

    def action_answer(self) -> None:
        """Have the question come up now."""
        self._called = bool(self._waiting)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer an answer only where something is asked."""
        if action == "answer" and not self._waiting:
            return False
        return super().check_action(action, parameters)

    def ignores(self, event: events.Key | events.Paste) -> bool:
        """Whether a key was typed before the question could be read that it would answer."""
        return isinstance(self.screen, Question) and not self.screen.heeds(event)
