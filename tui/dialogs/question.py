"""Dialogs that ignore answers given before their question could be read, because the answer has an effect."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, ClassVar

from textual.app import App
from textual.message import Message
from textual.screen import ScreenResultType
from textual.widgets import Input, TextArea

from disttui.tui.key_queue import Typed
from disttui.tui.screen import DisttuiModal

READING_TIME = 0.5
"""Seconds without a key press after which an unrequested question counts as read."""


class Question(DisttuiModal[ScreenResultType]):
    """A dialog that ignores keys and clicks from before it was shown."""

    UNREQUESTED: ClassVar[bool] = False
    """Whether it opens without a key press; since the user may be typing, early keys are ignored as well."""
    IS_FORM: ClassVar[bool] = False
    """Whether a host's question opens over it: a form may wait for the answer."""

    def __init__(self, *, unrequested: bool = False) -> None:
        super().__init__()
        self._unrequested = unrequested or self.UNREQUESTED
        self._answers_from = inf
        """Time from which answers count (monotonic clock, s), because the question could be read."""

    def on_mount(self) -> None:
        """Accept answers after the dialog is painted."""
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._answers_from = monotonic() + (READING_TIME if self._unrequested else 0.0)

    @property
    def ready(self) -> bool:
        """Whether a key typed now counts."""
        return monotonic() >= self._answers_from

    def accepts(self, event: Message) -> bool:
        """Whether a key or click is an answer to this question; if not, the waiting time starts again."""
        if event.time >= self._answers_from:
            return True
        if self._answers_from < inf:
            self._answers_from = max(self._answers_from, event.time + READING_TIME)
        return False


class QuestionGate:
    """Delays questions while the user types.

    A question never opens over an input that has the focus, nor over another question, except a form. It waits until
    the input loses the focus, or until the user presses the key that the footer shows.
    """

    def __init__(self, app: App[None]) -> None:
        self._app = app
        self._waiting: dict[Question[Any], str] = {}
        """Waiting question → the host that asks it."""
        self._called = False

    def put(self, host: str, question: Question[Any], answer: Callable[[Any], None]) -> bool:
        """Show a question and return True, or return False if it has to wait: call this again a moment later.

        Args:
            host: The host that asks the question.
            question: The dialog to show.
            answer: Called with the answer.
        """
        shown = self._app.screen
        if (isinstance(shown, Question) and not shown.IS_FORM) or (self._typing and not self._called):
            if question not in self._waiting:
                self._waiting[question] = host
                if self._typing:
                    self._app.notify(f"{self._how()} to answer", title=f"{host} has a question")
                self._app.screen.refresh_bindings()
            return False
        self._called = False
        if self._waiting.pop(question, None):
            self._app.clear_notifications()  # the notice about the question would cover it
        self._app.push_screen(question, answer)
        return True

    @property
    def waiting(self) -> bool:
        """Whether any question is waiting."""
        return bool(self._waiting)

    def call(self) -> None:
        """Show the waiting question even over an input."""
        self._called = self.waiting

    def ignores(self, event: Typed) -> bool:
        """Whether a key or click would answer a question that could not be read yet at its time."""
        return isinstance(self._app.screen, Question) and not self._app.screen.accepts(event)

    def _how(self) -> str:
        bindings = (active.binding for active in self._app.screen.active_bindings.values())
        key = next((self._app.get_key_display(one) for one in bindings if one.id == "app.answer"), None)
        return f"Press {key}, or leave the input," if key else "Leave the input"

    @property
    def _typing(self) -> bool:
        return isinstance(self._app.focused, Input | TextArea)
