"""A dialog whose answer changes something: it takes no answer from somebody who cannot have read it."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import ClassVar

from textual.message import Message
from textual.screen import ScreenResultType

from tui.screen import DisttuiModal


class Question(DisttuiModal[ScreenResultType]):
    """Ignores keys and clicks from before it was on the screen."""

    UNINVITED: ClassVar[bool] = False
    """Whether it comes up by itself. Somebody who is typing then goes on for a moment: those keys are ignored, too."""
    CALM: ClassVar[float] = 0.5
    """Seconds without a key after which a question that came up by itself counts as seen."""

    def __init__(self) -> None:
        super().__init__()
        self._heeds_from = inf

    def on_mount(self) -> None:
        """Take answers once it is painted."""
        self.call_after_refresh(self._painted)

    def _painted(self) -> None:
        self._heeds_from = monotonic() + (self.CALM if self.UNINVITED else 0.0)

    @property
    def ready(self) -> bool:
        """Whether a key that is typed now counts."""
        return monotonic() >= self._heeds_from

    def heeds(self, event: Message) -> bool:
        """Whether a key or click is an answer to this question."""
        if event.time >= self._heeds_from:
            return True
        if self._heeds_from < inf:
            self._heeds_from = max(self._heeds_from, event.time + self.CALM)
        return False
