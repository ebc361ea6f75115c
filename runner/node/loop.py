"""A small event loop: file descriptors and timers in one thread."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from typing import Any, Callable

_Callback = Callable[[], None]


class Timer:
    """A callback that is due at `when` (monotonic seconds)."""

    def __init__(self, when: float, callback: _Callback, interval: float | None) -> None:
        self.when = when
        self.callback = callback
        self.interval = interval
        self.cancelled = False

    def cancel(self) -> None:
        """Never call it again, and drop the reference to the callback, which may keep large objects alive."""
        self.cancelled = True
        self.callback = lambda: None


class Loop:
    """Calls back when descriptors are ready and timers are due. An exception in a callback ends `run`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._running = True

    def watch(self, fd: Any, reader: _Callback | None, writer: _Callback | None = None) -> None:
        """Call `reader` and `writer` when `fd` is ready for them; replaces earlier callbacks."""
        events = (selectors.EVENT_READ if reader else 0) | (selectors.EVENT_WRITE if writer else 0)
        try:
            self._selector.modify(fd, events, (reader, writer))
        except KeyError:
            self._selector.register(fd, events, (reader, writer))

    def forget(self, fd: Any) -> None:
        """Stop watching `fd`; must be called before closing it."""
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            pass

    def after(self, seconds: float, callback: _Callback) -> Timer:
        """Call back once, `seconds` from now."""
        return self._push(Timer(time.monotonic() + seconds, callback, None))

    def every(self, seconds: float, callback: _Callback) -> Timer:
        """Call back every `seconds`; missed calls are not repeated."""
        return self._push(Timer(time.monotonic() + seconds, callback, seconds))

    def soon(self, callback: _Callback) -> None:
        """Call back in the next round, in the order in which callbacks were added."""
        self.after(0, callback)

    def run(self) -> None:
        """Work until `stop` is called."""
        while self._running:
            for key, events in self._selector.select(self._wait()):
                reader, writer = key.data
                if events & selectors.EVENT_READ and reader:
                    reader()
                if events & selectors.EVENT_WRITE and writer:
                    writer()
            self._fire(time.monotonic())

    def stop(self) -> None:
        """Return from `run` after this round."""
        self._running = False

    def _push(self, timer: Timer) -> Timer:
        heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        return timer

    def _wait(self) -> float | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _fire(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now and self._running:
            timer = heapq.heappop(self._timers)[2]
            if timer.cancelled:
                continue
            timer.callback()
            if timer.interval is not None:
                timer.when = now + timer.interval
                self._push(timer)
