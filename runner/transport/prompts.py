"""Questions to the person at the terminal."""

from __future__ import annotations

import getpass
import io
import os
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from runner.text import clean
from runner.text.glyphs import fit


class TerminalPrompts:
    """Asks on the controlling terminal, one question at a time; without a terminal every answer is no."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._echoing: list[Any] | None = None

    def close(self) -> None:
        """Turn the terminal's echo on again: an interrupt may have left a question for a secret open."""
        echoing = self._echoing
        if echoing is not None:
            with _terminal() as terminal:
                if terminal is not None:
                    termios.tcsetattr(terminal, termios.TCSANOW, echoing)

    def secret(self, host: str, question: str) -> str | None:
        """Ask without echo; None when there is no terminal or the answer is empty."""
        with self._lock, _terminal() as terminal:
            if terminal is None:
                return None
            try:
                self._echoing = termios.tcgetattr(terminal)
                return getpass.getpass(f"{clean(host)}: {clean(question).rstrip()} ") or None
            except (EOFError, OSError):
                return None
            finally:
                self._echoing = None

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        """Show the fingerprint and ask; anything but `y` or `yes` means no."""
        found = f"{clean(host)}: the host key is unknown: {clean(key_type)} {fingerprint}\n"
        with self._lock:
            return bool(confirm(f"{found}Trust it and remember it?"))


def confirm(question: str) -> bool | None:
    """Ask on the controlling terminal; anything but `y` or `yes` means no. None where there is no terminal.

    Args:
        question: Clean text, of one line or more.
    """
    with _terminal() as terminal:
        if terminal is None:
            return None
        terminal.write(f"{question} [y/N] ")
        terminal.flush()
        return terminal.readline().strip().lower() in ("y", "yes")


@contextmanager
def _terminal() -> Iterator[TextIO | None]:
    try:
        file = io.FileIO(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC), "w+")
    except OSError:
        yield None
        return
    # Not open(): its buffers want to seek, which a terminal cannot.
    with io.TextIOWrapper(file) as terminal:
        fit(terminal, os.environ, utf8_mode=bool(sys.flags.utf8_mode))
        yield terminal
