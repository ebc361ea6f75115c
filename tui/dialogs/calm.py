"""Decides whether a key can be an answer: only after the question has been readable for a moment."""

from __future__ import annotations

from math import inf
from time import monotonic

CALM = 0.5
"""Seconds without a key after which an uninvited text counts as read."""


class Calm:
    """Rejects keys that were pressed before the text that they would answer could be read.

    Args:
        seconds: How long the text must be shown without a key; 0: a key of the user opened it.
    """

    def __init__(self, seconds: float = CALM) -> None:
        self._seconds = seconds
        self._from = inf

    def begin(self) -> None:
        """Note that the text is on the screen now."""
        self._from = monotonic() + self._seconds

    def end(self) -> None:
        """Note that the text is no longer on the screen."""
        self._from = inf

    @property
    def begun(self) -> bool:
        """Whether the text is on the screen."""
        return self._from < inf

    @property
    def ready(self) -> bool:
        """Whether a key typed now counts."""
        return monotonic() >= self._from

    def heeds(self, typed_at: float) -> bool:
        """Whether a key typed at `typed_at` (monotonic clock, s) counts; if not, the waiting time starts again."""
        if typed_at >= self._from:
            return True
        if self.begun:
            self._from = max(self._from, typed_at + CALM)
        return False
