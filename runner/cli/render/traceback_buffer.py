"""Holds a rank's traceback back until it is known whether it is the root cause, so that it is printed once."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from runner.text import without_colours

PATIENCE = 1.5
"""Seconds for which lines that look like a traceback wait for the rank's own report of it."""

# torch puts this in front of every line of an uncaught exception once a process group is up.
_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_FIRST = ("Traceback (most recent call last):", "  + Exception Group Traceback (most recent call last):")


class TracebackBuffer:
    """Passes one rank's lines on, except the traceback that the rank also reports as an event."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._since = 0.0
        self._reported: list[str] = []

    def feed(self, lines: list[str]) -> list[str]:
        """Take lines; return those to print now."""
        if not self._held:
            first = next((i for i, line in enumerate(lines) if _bare(line).startswith(_FIRST)), None)
            if first is None:
                return lines
            ready, self._held = lines[:first], lines[first:]
            self._since = time.monotonic()
        else:
            ready, self._held = [], self._held + lines
        return ready + self._match()

    def report(self, traceback: Sequence[str]) -> list[str]:
        """The rank has reported this traceback; return held lines that are not part of it."""
        self._reported = list(traceback)
        return self._match()

    def release(self, *, everything: bool = False) -> list[str]:
        """Return lines that have waited long enough, or all of them."""
        if not self._held or not (everything or time.monotonic() - self._since > PATIENCE):
            return []
        held, self._held = self._held, []
        return held

    def _match(self) -> list[str]:
        wanted, held = self._reported, self._held
        if not wanted or len(held) < len(wanted):
            return []
        for start in range(len(held) - len(wanted) + 1):
            if [_bare(line) for line in held[start : start + len(wanted)]] == wanted:
                self._held, self._reported = [], []
                return held[:start] + held[start + len(wanted) :]
        return []


def _bare(line: str) -> str:
    return _PREFIX.sub("", without_colours(line))
