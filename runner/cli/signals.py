"""The user's requests by signals while a command follows a run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from disttui.runner.runs.following import RunControl

_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_back() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP wait until the block has ended."""
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _CAUGHT if signal.getsignal(number) != signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


class Signals(RunControl):
    """SIGINT and SIGTERM stop the run, a second one kills it, a third one detaches; SIGHUP detaches.

    The second SIGTERM is ignored, since `timeout` sends two. Before `hold_back` there is no run yet: the first
    signal raises KeyboardInterrupt.

    Args:
        only_leave: SIGINT and SIGTERM detach as well.
    """

    def __init__(self, *, only_leave: bool = False) -> None:
        self._only_leave = only_leave
        self._held_back = False
        self._terms = 0

    def hold_back(self) -> None:
        """From now on signals are only noted."""
        self._held_back = True

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch SIGINT, SIGTERM and SIGHUP while the block runs; nohup's SIGHUP stays ignored."""
        before = {number: signal.getsignal(number) for number in _CAUGHT}
        try:
            signal.signal(signal.SIGINT, self._stop)
            signal.signal(signal.SIGTERM, self._stop)
            if before[signal.SIGHUP] != signal.SIG_IGN:
                signal.signal(signal.SIGHUP, self._hang_up)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._terms += number == signal.SIGTERM
        if number == signal.SIGTERM and self._terms == 2:
            return
        self.stops += not self._only_leave
        self.leave = self.leave or self._only_leave or self.stops > 2
        self._interrupt()

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        self.leave = True
        self._interrupt()

    def _interrupt(self) -> None:
        if not self._held_back:
            self._held_back = True
            raise KeyboardInterrupt
