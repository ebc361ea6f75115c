"""Regular expressions that somebody typed: one that takes for ever must hold up nobody.

Python's `re` cannot be interrupted in a thread, and holds the interpreter while it tries. So lines are tried by a child
process that has only so much CPU time for them; in the main thread, where a signal does interrupt it, by a timer.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import AnyStr

from tui.logs.trial import COUNT, HEAD

_PROGRAM = Path(__file__).with_name("trial.py")


class SearchFailed(Exception):
    """It cannot be found out which lines fit; in a few words, why."""


class Trials:
    """The child, started when it is first needed. For any thread."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def matching(self, expression: re.Pattern[AnyStr], text: AnyStr) -> list[int]:
        """Which lines of a text an expression fits, from 0. Raises SearchFailed."""
        with self._lock:
            try:
                found = self._ask(expression, text if isinstance(text, bytes) else text.encode())
            except OSError as error:
                raise SearchFailed(f"cannot be tried: {error.strerror}") from None
            if found is None:
                raise SearchFailed("takes too long" if self._end() == -signal.SIGPROF else "could not be tried")
        return list(found)

    def close(self) -> None:
        """End the child, until it is needed again."""
        with self._lock:
            self._end()

    def _ask(self, expression: re.Pattern[AnyStr], text: bytes) -> array[int] | None:
        if self._child is None:
            command = [sys.executable, "-I", "-S", str(_PROGRAM)]
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        to, back = self._child.stdin, self._child.stdout
        assert to and back
        of_bytes = isinstance(expression.pattern, bytes)
        pattern = expression.pattern if isinstance(expression.pattern, bytes) else expression.pattern.encode()
        try:
            to.write(HEAD.pack(of_bytes, expression.flags & re.IGNORECASE, len(pattern), len(text)) + pattern)
            to.write(text)
            to.flush()
        except BrokenPipeError:
            return None
        head = back.read(COUNT.size)
        found = array("I")
        if len(head) == COUNT.size:
            found.frombytes(back.read(COUNT.unpack(head)[0] * found.itemsize))
            return found
        return None

    def _end(self) -> int:
        child, self._child = self._child, None
        if child is None:
            return 0
        child.terminate()
        for pipe in (child.stdin, child.stdout):
            with suppress(OSError):  # what it was still to be told
                assert pipe
                pipe.close()
        return child.wait()


TRIALS = Trials()


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Interrupt what takes longer than that of CPU time, by a TimeoutError; only in the main thread. None: no limit."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    within = True

    def interrupt(number: int, frame: object) -> None:
        if within:
            raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        within = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
