"""SIGTERM requests the end after a checkpoint if the ranks can still agree on one; SIGUSR1 requests a checkpoint."""

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
"""Least seconds without a beat until a rank that was asked to end is killed; three of the longest rounds, if longer."""
_DISK_PATIENCE = 30.0
"""Least seconds for a rank that waits for what other ranks write: a disk is slower than a step."""


class Terminated(Exception):
    """The ranks have agreed to end, and have written a checkpoint if they could."""


class Termination:
    """Records a SIGTERM while it is entered; `requested` then reports it, and `snapshot` a SIGUSR1.

    If the training makes no progress after that and no rank has called `agree`, it ends the process as SIGTERM would: a
    rank that waits for a lost one must not wait for long. A thread does that, since Python's own handlers wait for the
    main thread.

    Args:
        enabled: False leaves both signals unchanged.
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
        """Note that the ranks know that they end: writing a checkpoint may then take any time."""
        self._agreed.set()

    @contextmanager
    def writing(self, *, together: bool = False) -> Iterator[None]:
        """A context for waiting for a disk: this rank's own may take any time, with or without a SIGTERM.

        Args:
            together: Whether other ranks are needed, one of which may be disconnected: the wait is longer, but limited.
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
        """Seconds until the process is ended if SIGTERM came at `asked` and there is no further progress."""
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
                self._finish()  # the training may have continued since
                if self.left(asked) <= 0 and not self._agreed.is_set():
                    os._exit(128 + signal.SIGTERM)


def end_by_sigterm() -> None:
    """End this process in the same way as SIGTERM, so that its launcher sees that."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)  # the signal may reach another thread first
