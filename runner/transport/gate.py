"""How many connects go on at a time: hosts that are off must not keep the others out."""

from __future__ import annotations

import threading
import time
from types import TracebackType

PATIENCE = 3.0
"""Seconds after which a connect that still goes on does not count: it costs nobody anything, and waits."""


class Gate:
    """Lets a number of threads through at a time; one that has been inside for `PATIENCE` keeps no other out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside: dict[int, float] = {}
        """Thread → when it came (monotonic)."""
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            while len(quick := self._quick()) >= self._most:
                self._changed.wait(max(0.01, min(quick) + PATIENCE - time.monotonic()))
            self._inside[threading.get_ident()] = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            del self._inside[threading.get_ident()]
            self._changed.notify()

    def _quick(self) -> list[float]:
        """When those came that count."""
        now = time.monotonic()
        return [came for came in self._inside.values() if now - came < PATIENCE]
