"""SIGTERM as a wish to end: a checkpoint is written first, where the ranks can still agree on one."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from types import TracebackType
from typing import Any, Callable, Optional

_LEAST_PATIENCE = 3.0
"""Seconds that the ranks have at least to agree that they end."""


class Terminated(Exception):
    """The ranks have agreed to end, and have written a checkpoint if they could."""


class Termination:
    """Notes a SIGTERM while it is entered; `requested` then tells.

    Ends the process, as SIGTERM would, where nobody has called `agree` in time: a rank that waits for one that is gone
    must not wait for long. A thread does that, since Python's own handlers wait for the main thread.

    Args:
        enabled: False leaves SIGTERM as it is.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self.requested = False
        self._agreed = threading.Event()
        self._slowest = 0.0
        self._last = time.monotonic()
        self._restore: Optional[Callable[[], None]] = None

    def __enter__(self) -> Termination:
        if self._enabled:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            handler = signal.signal(signal.SIGTERM, lambda *_: None)
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(ours,), name="termination", daemon=True).start()

            def restore() -> None:
                signal.set_wakeup_fd(before)
                signal.signal(signal.SIGTERM, handler)
                theirs.close()

            self._restore = restore
        return self

    def __exit__(self, kind: Any, value: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        if self._restore is not None:
            self._restore()

    def beat(self) -> None:
        """Note that a round of the loop, in which the ranks can agree, is over."""
        now = time.monotonic()
        self._slowest = max(self._slowest, now - self._last)
        self._last = now

    def agree(self) -> None:
        """Note that the ranks know that they end: writing a checkpoint may take as long as it takes."""
        self._agreed.set()

    def _watch(self, ours: socket.socket) -> None:
        with ours:
            while numbers := ours.recv(64):
                if signal.SIGTERM in numbers:
                    self.requested = True
                    break
        if self.requested and not self._agreed.wait(max(_LEAST_PATIENCE, 3 * self._slowest)):
            os._exit(128 + signal.SIGTERM)


def end_by_sigterm() -> None:
    """End this process the way SIGTERM ends one, for its launcher to see."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)  # the signal may reach another thread first
