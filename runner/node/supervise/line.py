"""A queued run's place in the queue of this host: whether there is room, and taking the lease when it is its turn."""

from __future__ import annotations

import os
import time
from typing import Callable, Optional

from ...protocol.leases import share
from .. import leases
from ..gang.turn import Services
from ..loop import Loop

_PAUSE, _SHARE = 0.5, 20
"""Least seconds between two checks, and at least this many times the last one's duration: others may add files."""
_UNWRITABLE = 3.0
"""Seconds until the next check after a lease could not be written."""


class Line:
    """Watches the leases of this host for one waiting run.

    Args:
        held: The run's own lease, in state `waiting`.
        tell: Called with whether there is room, and who is in the way.
    """

    def __init__(self, loop: Loop, held: leases.HeldLease, tell: Callable[[bool, str], None]) -> None:
        self._loop = loop
        self._held = held
        self._tell = tell
        self._told: Optional[str] = None
        self._not_before = 0.0
        self._services = Services(os.getuid())
        self._took = 0.0
        """Duration of the last check in seconds."""
        self._timer = loop.after(_PAUSE, self._look_again)

    def look(self) -> None:
        """Report whether there is room, if that has changed; without a visible lease there is no room."""
        if self._held.text["state"] == "held" or self._held.fd < 0 or time.monotonic() < self._not_before:
            return
        try:
            self._held.repair()
        except OSError as error:
            self._fail(error)
            return
        wish = leases.wish_of(self._held.text)
        began = time.monotonic()
        found = leases.look().leases
        self._services.see(found)
        mine = share(wish, found, self._services.least)
        self._took = time.monotonic() - began
        self._say(not mine.taken, leases.reason(wish, mine))

    def take(self) -> bool:
        """Take the lease; False if another user was faster, or the lease cannot be written."""
        try:
            done = self._held.take_turn(self._services.least)
        except OSError as error:
            self._fail(error)
            return False
        if not done:
            self._told = None
        return done

    def give_back(self) -> None:
        """Return to the queue."""
        self._write(self._held.wait)

    def move(self, round_number: int, order: float) -> None:
        """Move to another place in the queue."""
        self._write(lambda: self._held.move(round_number, order))

    def close(self) -> None:
        self._timer.cancel()

    def _look_again(self) -> None:
        self.look()
        self._timer = self._loop.after(max(_PAUSE, _SHARE * self._took), self._look_again)

    def _write(self, write: Callable[[], None]) -> None:
        self._told = None
        try:
            write()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._say(False, f"cannot write its lease ({self._held.path}: {error.strerror})")
        self._not_before = time.monotonic() + _UNWRITABLE

    def _say(self, room: bool, why: str) -> None:
        if why != self._told:
            self._told = why
            self._tell(room, why)
