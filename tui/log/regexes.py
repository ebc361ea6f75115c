"""Regular expressions that the user typed: one that never ends must not block the app.

Python's `re` cannot be interrupted in a thread, and blocks the interpreter while it matches. So a child process with
limited CPU time matches lines; in the main thread, where a signal can interrupt it, a timer limits it.
"""

from __future__ import annotations

import os
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

from tui.log.trial import BYTES, COUNT, FILE, HEAD, OTHER, TEXT

_PROGRAM = Path(__file__).with_name("trial.py")


class SearchFailed(Exception):
    """The matching lines could not be found; the message says why in a few words."""


class Trials:
    """The child process, started when it is first needed. Thread-safe."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def matching(self, expression: re.Pattern[AnyStr], text: AnyStr) -> list[int]:
        """The numbers, from 0, of the lines of a text that match. Raises SearchFailed."""
        pattern = expression.pattern
        if isinstance(pattern, bytes) and isinstance(text, bytes):
            found = self._answer(BYTES, expression.flags, pattern, text)
        else:
            found = self._answer(TEXT, expression.flags, str(pattern).encode(), str(text).encode())
        assert found is not None
        return found

    def matching_in(
        self, expression: re.Pattern[bytes], path: Path, offset: int, length: int, lines: int
    ) -> list[int] | None:
        """The same for lines of a file, which the child reads itself; None if the file has other lines there."""
        return self._answer(FILE, expression.flags, expression.pattern, os.fsencode(path), offset, length, lines)

    def _answer(self, kind: bytes, flags: int, pattern: bytes, given: bytes, *place: int) -> list[int] | None:
        head = HEAD.pack(kind, flags & re.IGNORECASE, len(pattern), len(given), *(place or (0, 0, 0)))
        with self._lock:
            try:
                return self._ask(head + pattern, given)
            except OSError as error:
                raise SearchFailed(f"cannot be tried: {error.strerror}") from None

    def close(self) -> None:
        """End the child, until it is needed again."""
        with self._lock:
            self._end()

    def _ask(self, question: bytes, given: bytes) -> list[int] | None:
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
        head = b""
        with suppress(BrokenPipeError):  # it has ended, which the read below detects
            to.write(question)
            to.write(given)
            to.flush()
            head = back.read(COUNT.size)
        if len(head) < COUNT.size:
            raise SearchFailed("takes too long" if self._end() == -signal.SIGPROF else "could not be tried")
        (count,) = COUNT.unpack(head)
        if count == OTHER:
            return None
        found = array("I")
        found.frombytes(back.read(count * found.itemsize))
        return list(found)

    def _end(self) -> int:
        child, self._child = self._child, None
        if child is None:
            return 0
        child.terminate()
        for pipe in (child.stdin, child.stdout):
            with suppress(OSError):  # closing flushes the rest of a request
                assert pipe
                pipe.close()
        return child.wait()


TRIALS = Trials()


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError in the block after that much CPU time; only in the main thread. None: no limit."""
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
