"""Whether a key can be an answer: it counts once what it answers has been readable for a moment."""

from __future__ import annotations

from math import inf
from time import monotonic

CALM = 0.5
"""Seconds without a key after which words that came up by themselves count as read."""


class Calm:
    """Keeps keys that were under way from answering words that nobody can have read.

    Args:
        seconds: How long the words have to stand without a key; 0: they came up at a key.
    """

    def __init__(self, seconds: float = CALM) -> None:
        self._seconds = seconds
        self._from = inf

    def begin(self) -> None:
        """The words are on the screen."""
        self._from = monotonic() + self._seconds

    def end(self) -> None:
        """They are there no longer."""
        self._from = inf

    @property
    def begun(self) -> bool:
        """Whether the words are on the screen."""
        return self._from < inf

    @property
    def ready(self) -> bool:
        """Whether a key that is typed now counts."""
        return monotonic() >= self._from

    def heeds(self, typed_at: float) -> bool:
        """Whether a key counts that was typed then (monotonic clock, s); if not, the moment begins again."""
        if typed_at >= self._from:
            return True
        if self.begun:
            self._from = max(self._from, typed_at + CALM)
        return False
