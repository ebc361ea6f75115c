"""How the terminal itself announces a watched run: its title, a bell and a notification at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from disttui.runner.text import clean
from disttui.runner.user.config import NOTIFY, Settings

DEAF_TERMS = ("linux", "dumb", "")
"""Values of TERM for terminals that show an OSC sequence as text, or drop it."""
_LONGEST = 120
_KEEP_TITLE, _LAST_TITLE = "\x1b[22;0t", "\x1b[23;0t"


class Notices:
    """Announces the state of one run through the terminal, as the user's config asks.

    Args:
        send: Takes control sequences.
    """

    def __init__(self, send: Callable[[str], None], wanted: Settings, environ: Mapping[str, str]) -> None:
        self._send = send
        self._wanted = wanted
        self._deaf = environ.get("TERM", "") in DEAF_TERMS
        self._inside_tmux = bool(environ.get("TMUX"))
        self._title = ""
        self._went_on = False

    def tell(self, run: str, word: str, *, over: bool) -> None:
        """Take the state of the run; its end is announced once, and only if the run was seen running before."""
        text = f"{_plain(run)} {_plain(word)}"
        if self._wanted.title and not self._deaf and text != self._title:
            self._send(("" if self._title else _KEEP_TITLE) + f"\x1b]2;{text}\x07")
            self._title = text
        if over and self._went_on:
            self._send(self._end(text))
        self._went_on = not over

    def close(self) -> None:
        """Restore the terminal's earlier title."""
        if self._title:
            self._send(_LAST_TITLE)
            self._title = ""

    def _end(self, text: str) -> str:
        bell = "\a" if self._wanted.bell else ""
        if self._deaf or self._wanted.notify not in NOTIFY[1:]:
            return bell
        what = f"9;{text}" if self._wanted.notify == "osc9" else f"777;notify;disttui;{text}"
        sequence = f"\x1b]{what}\x07"
        return bell + (through_tmux(sequence) if self._inside_tmux else sequence)


def _plain(text: str) -> str:
    # A semicolon would begin another field, and `9;4;` means a progress bar.
    return clean(text).replace(";", ",")[:_LONGEST]


def through_tmux(sequence: str) -> str:
    """The sequence as tmux forwards it to its terminal: wrapped, with every escape in it doubled."""
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
