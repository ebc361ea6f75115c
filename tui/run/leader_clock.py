"""The leader's time: the clock of the machine that a run is looked at from may be wrong."""

from __future__ import annotations

import math
import time


class LeaderClock:
    """Tells the leader's time by its records as they arrive.

    A record arrives some time after its own, so the least difference counts: of this window with records and the one
    before, because this machine's clock may be set right meanwhile.
    """

    _WINDOW = 30.0

    def __init__(self) -> None:
        self._since = -math.inf
        self._before = self._newest = math.inf
        """How far the leader is behind this machine's clock (s): the least of the window before, and of this one."""

    def hear(self, t: float, *, live: bool) -> None:
        """Take the time of a record that has just arrived.

        Args:
            live: It was written just now. An older one can only show that the leader is ahead.
        """
        behind, now = time.time() - t, time.monotonic()
        if behind >= 0 and not live:
            return
        if now - self._since > self._WINDOW:
            self._before, self._newest, self._since = self._newest, behind, now
        self._newest = min(self._newest, behind)

    def now(self) -> float:
        """The leader's time (unix time, s); before its first word, this machine's."""
        behind = min(self._before, self._newest)
        return time.time() - (behind if math.isfinite(behind) else 0.0)
