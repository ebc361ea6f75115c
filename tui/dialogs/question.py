"""A dialog whose answer has an effect: it ignores answers given before it could be read."""

from __future__ import annotations

from typing import ClassVar

from textual.message import Message
from textual.screen import ScreenResultType

from tui.dialogs.calm import CALM, Calm
from tui.screen import DisttuiModal


class Question(DisttuiModal[ScreenResultType]):
    """Ignores keys and clicks from before it was shown."""

    UNINVITED: ClassVar[bool] = False
    """Whether no key of the user opens it. The user may be typing then: keys of the first moment are ignored, too."""

    def __init__(self) -> None:
        super().__init__()
        self._calm = Calm(CALM if self.UNINVITED else 0.0)

    def on_mount(self) -> None:
        """Accept answers after it is painted."""
        self.call_after_refresh(self._calm.begin)

    @property
    def ready(self) -> bool:
        """Whether a key typed now counts."""
        return self._calm.ready

    def heeds(self, event: Message) -> bool:
        """Whether a key or click is an answer to this question."""
        return self._calm.heeds(event.time)
