"""SIGTERM requests the end after a checkpoint where the ranks can still agree on one; SIGUSR1 requests a checkpoint."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Callable, Optional

_LEAST_PATIENCE = 3.0
"""Least seconds without a beat until a rank that was asked to end is ended; three of the longest rounds, if longer."""
_DISK_PATIENCE = 30.0
"""The same for a rank that waits for what other ranks write: a disk is slower than a step."""


class Terminated(Exception):
    """The ranks have agreed to end, and have written a checkpoint if they could."""


class Termination:
    """Notes a SIGTERM while it is entered; `requested` then tells, and `snapshot` of a SIGUSR1.

    Ends the process, as SIGTERM would, where the training then stands still and no rank has called `agree`: a rank that
    waits for one that is gone must not wait for long. A thread does that, since Python's own handlers wait for the main
    thread.

    Args:
        enabled: False leaves both signals as they are.
        finish: Waits for what this rank can finish alone; called before the process is ended.
    """

    def __init__(self, *, enabled: bool, finish: Callable[[], None] = lambda: None) -> None:
        self._enabled = enabled
        self._finish = finish
        self.requested = False
        self.snapshot = False
        self._agreed = threading.Event()
        self._least = _LEAST_PATIENCE
        self._slowest = 0.0
        self._slowest_write = 0.0
        self._last = time.monotonic()
        self._restore: Optional[Callable[[], None]] = None

    def __enter__(self) -> Termination:
        if self._enabled:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            handlers = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGTERM, signal.SIGUSR1)}
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(ours,), name="termination", daemon=True).start()

            def restore() -> None:
                signal.set_wakeup_fd(before)
                for one, handler in handlers.items():
                    signal.signal(one, handler)
                theirs.close()

            self._restore = restore
        return self

    def __exit__(self, kind: Any, value: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        if self._restore is not None:
            self._restore()

    def beat(self) -> None:
        """Note progress: a round of the loop, or a batch of a validation, is over."""
        now = time.monotonic()
        self._slowest = max(self._slowest, now - self._last)
        self._last = now

    def agree(self) -> None:
        """Note that the ranks know that they end: writing a checkpoint may take as long as it takes."""
        self._agreed.set()

    @contextmanager
    def writing(self, *, together: bool = False) -> Iterator[None]:
        """Surrounds the wait for a disk: this rank's own may take as long as it takes, with a SIGTERM or without.

        Args:
            together: It needs other ranks, one of which may be cut off: the patience is longer there, not endless.
        """
        began = time.monotonic()
        self._least = max(_DISK_PATIENCE, 3 * self._slowest_write) if together else math.inf
        try:
            yield
        finally:
            self._last = time.monotonic()
            self._slowest_write = max(self._slowest_write, self._last - began)
            self._least = _LEAST_PATIENCE

    def left(self, asked: float) -> float:
        """Seconds until the process is ended, where SIGTERM came at `asked` and nothing moves from now on."""
        return max(asked, self._last) + max(self._least, 3 * self._slowest) - time.monotonic()

    def _watch(self, ours: socket.socket) -> None:
        with ours:
            while numbers := ours.recv(64):
                self.snapshot = self.snapshot or signal.SIGUSR1 in numbers
                if signal.SIGTERM in numbers:
                    self.requested = True
                    break
        if not self.requested:
            return
        asked = time.monotonic()
        while not self._agreed.wait(0.1):
            if self.left(asked) <= 0:
                self._finish()  # the training may have continued in the meantime
                if self.left(asked) <= 0 and not self._agreed.is_set():
                    os._exit(128 + signal.SIGTERM)


def end_by_sigterm() -> None:
    """End this process the way SIGTERM ends one, for its launcher to see."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)  # the signal may reach another thread first
