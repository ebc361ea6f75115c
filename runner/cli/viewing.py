"""Asks the questions of a command on the controlling terminal."""

from __future__ import annotations

import getpass
import io
import os
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from disttui.runner.ids import short
from disttui.runner.profile.effects import effect_lines, foreign_lines
from disttui.runner.text import clean, clean_lines
from disttui.runner.text.glyphs import fit
from disttui.runner.text.masking import masked

if TYPE_CHECKING:
    from disttui.runner.api.questions import Doubt


class TerminalQuestions:
    """Asks on the controlling terminal, one question at a time; without a terminal every answer is no."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._echoing: list[Any] | None = None

    def close(self) -> None:
        """Restore the terminal's echo, which an interrupted password prompt leaves off."""
        echoing = self._echoing
        if echoing is not None:
            with _terminal() as terminal:
                if terminal is not None:
                    termios.tcsetattr(terminal, termios.TCSANOW, echoing)

    def secret(self, host: str, question: str, said: str = "") -> str | None:
        """Ask without echo; None when there is no terminal or the answer is empty."""
        with self._lock, _terminal() as terminal:
            if terminal is None:
                return None
            try:
                self._echoing = termios.tcgetattr(terminal)
                return getpass.getpass(f"{_heard(host, said)}{clean(host)}: {clean(question).rstrip()} ") or None
            except (EOFError, OSError):
                return None
            finally:
                self._echoing = None

    def tell(self, host: str, said: str) -> None:
        """Print it."""
        with self._lock, _terminal() as terminal:
            if terminal is not None:
                terminal.write(_heard(host, said))

    def share_password(self, host: str, others: int) -> bool:
        """Ask; anything but `y` or `yes` means no."""
        which = "host" if others == 1 else f"{others} hosts"
        asked = f"{clean(host)} accepted this password. Try it on the other {which}?"
        with self._lock:
            return bool(confirm(f"{asked} It is kept only in memory."))

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        """Show the fingerprint and ask; anything but `y` or `yes` means no."""
        found = f"{clean(host)}: the host key is unknown: {clean(key_type)} {fingerprint}\n"
        with self._lock:
            return bool(confirm(f"{found}Trust and remember it?"))

    def trust_profile(self, doubt: Doubt) -> bool | None:
        """Show the commands of a profile, and ask."""
        if doubt.changes:
            return confirm("\n".join([f"{doubt}:", *(f"  {line}" for line in doubt.changes), "Use it?"]))
        shown = (foreign_lines if doubt.path is None else effect_lines)(doubt.profile)
        lines = [masked(f"  {key}: {text}", guesses=False) for key, text in shown]
        return confirm("\n".join([f"{doubt}. With your login, it runs:", *lines, "Continue?"]))

    def trust_hosts(self, asked: str, run: str, others: Sequence[str]) -> bool | None:
        """Ask whether to log in to hosts that another host names."""
        names = ", ".join(clean(other, guesses=False) for other in others)
        words = f"{asked} says that {short(run)} also runs on {names}"
        return confirm(f"{words}.\nLog in to them as well, with your ssh configuration for these names?")


def _heard(host: str, said: str) -> str:
    return f"{clean(host)} says:\n{clean_lines(said, guesses=False)}\n" if said else ""


def confirm(question: str) -> bool | None:
    """Ask on the controlling terminal; anything but `y` or `yes` means no; None without a terminal.

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
