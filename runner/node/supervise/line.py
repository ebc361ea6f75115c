"""A queued run's place in the line for this host: whether there is room, and taking the lease when it has its turn."""

from __future__ import annotations

import os
import time
from typing import Callable, Optional

from ...protocol.leases import share
from .. import changes, leases
from ..gang.turn import Services
from ..loop import Loop

_AGAIN = 5.0
"""Seconds after which the line is looked at without a sign: leases by hand end by the clock."""
_FAILED = 0.5
"""The same after a lease could not be taken, unless another user's change wakes it earlier."""
_UNWRITABLE = 3.0
"""The same after a lease could not be written; a sign in that time may come from that very try."""
_SOON = 0.25
"""Seconds from a change of the folder until it is looked at, and watched again: others may change it all the time."""
_SHARE = 20
"""A sign is followed up after so many times the length of the look before: others may fill the folder with files."""
_AGAIN_BLIND = 1.0
"""The same where changes of the folder cannot be watched."""


class Line:
    """Watches the leases of this host for one run that waits.

    Args:
        held: Its own, `waiting`.
        tell: Takes whether there is room, and who is in the way.
    """

    def __init__(self, loop: Loop, held: leases.HeldLease, tell: Callable[[bool, str], None]) -> None:
        self._loop = loop
        self._held = held
        self._tell = tell
        self._told: Optional[str] = None
        self._not_before = 0.0
        self._services = Services(os.getuid())
        self._took = 0.0
        """Seconds of the last look."""
        self._fd = changes.watch(os.path.dirname(held.path))
        if self._fd is not None:
            loop.watch(self._fd, self._changed)
        self._timer = loop.every(_AGAIN_BLIND if self._fd is None else _AGAIN, self.look)

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
        """Take the lease; False: another user was faster, or the lease cannot be written."""
        try:
            done = self._held.take_turn(self._services.least)
        except OSError as error:
            self._fail(error)
            return False
        if not done:
            self._told = None
            self._loop.after(_FAILED, self.look)
        return done

    def give_back(self) -> None:
        """Go back into line."""
        self._write(self._held.wait)

    def move(self, round_number: int, order: float) -> None:
        """Take another place in the queue."""
        self._write(lambda: self._held.move(round_number, order))

    def close(self) -> None:
        """Watch no more."""
        self._timer.cancel()
        if self._fd is not None:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = None

    def _write(self, write: Callable[[], None]) -> None:
        self._told = None
        try:
            write()
        except OSError as error:
            self._fail(error)
        else:
            self._loop.soon(self.look)

    def _fail(self, error: OSError) -> None:
        self._say(False, f"its lease cannot be written ({self._held.path}: {error.strerror})")
        self._not_before = time.monotonic() + _UNWRITABLE
        self._loop.after(_UNWRITABLE, self.look)

    def _say(self, room: bool, why: str) -> None:
        if why != self._told:
            self._told = why
            self._tell(room, why)

    def _changed(self) -> None:
        if self._fd is not None:  # else closed by what the loop did just before
            self._loop.forget(self._fd)
            self._loop.after(max(_SOON, _SHARE * self._took), self._look_at_changes)

    def _look_at_changes(self) -> None:
        if self._fd is None:
            return
        changed = changes.drain(self._fd, leases.PREFIX)
        self._loop.watch(self._fd, self._changed)
        if changed:
            self.look()
