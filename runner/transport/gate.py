"""How many connects go on at a time: hosts that are off must not keep the others out."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 3.0
"""Seconds after which a connect to a host that says nothing does not count: it costs nobody anything, and waits. So
does a login that goes no further."""
_LOOK = 1.0
"""Seconds after which those that wait look again: a question may have been answered, and its connect goes on."""


class GateEntry:
    """One connect that goes on."""

    def __init__(self) -> None:
        self.moved = time.monotonic()
        self.asks = False
        """Whether a person is asked: the servers that wait for answers end logins that take long."""

    def move(self) -> None:
        """Count it again from now on."""
        self.moved = time.monotonic()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count it however long this takes."""
        self.asks = True
        try:
            yield
        finally:
            self.asks = False
            self.move()


class Gate:
    """Lets a number of connects through at a time; one whose host says nothing for `PATIENCE` keeps no other out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside: list[GateEntry] = []
        self._changed = threading.Condition()

    @contextmanager
    def turn(self) -> Iterator[GateEntry]:
        """Wait for a turn, and have it."""
        with self._changed:
            while len(counted := self._counted()) >= self._most:
                soonest = min(math.inf if turn.asks else turn.moved for turn in counted) + PATIENCE - time.monotonic()
                self._changed.wait(max(0.01, min(soonest, _LOOK)))
            mine = GateEntry()
            self._inside.append(mine)
        try:
            yield mine
        finally:
            with self._changed:
                self._inside.remove(mine)
                self._changed.notify()

    def _counted(self) -> list[GateEntry]:
        now = time.monotonic()
        return [turn for turn in self._inside if turn.asks or now - turn.moved < PATIENCE]
