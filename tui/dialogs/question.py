"""A dialog whose answer changes something: it takes no answer from somebody who cannot have read it."""

from __future__ import annotations

from typing import ClassVar

from textual.message import Message
from textual.screen import ScreenResultType

from tui.dialogs.calm import CALM, Calm
from tui.screen import DisttuiModal


class Question(DisttuiModal[ScreenResultType]):
    """Ignores keys and clicks from before it was on the screen."""

    UNINVITED: ClassVar[bool] = False
    """Whether it comes up by itself. Somebody who is typing then goes on for a moment: those keys are ignored, too."""

    def __init__(self) -> None:
        super().__init__()
        self._calm = Calm(CALM if self.UNINVITED else 0.0)

    def on_mount(self) -> None:
        """Take answers once it is painted."""
        self.call_after_refresh(self._calm.begin)

    @property
    def ready(self) -> bool:
        """Whether a key that is typed now counts."""
        return self._calm.ready

    def heeds(self, event: Message) -> bool:
        """Whether a key or click is an answer to this question."""
        return self._calm.heeds(event.time)
