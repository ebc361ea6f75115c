"""Announces a watched run in the terminal (title, bell, notification), and finds the command of the user's editor."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from disttui.runner.errors import InputError
from disttui.runner.text import clean
from disttui.runner.user.config import NOTIFY, Settings

DEAF_TERMS = ("linux", "dumb", "")
"""Values of TERM for terminals that print an OSC sequence as text or ignore it."""
_KEEP_TITLE, _LAST_TITLE = "\x1b[22;0t", "\x1b[23;0t"


class Notices:
    """Announces the state of one run through the terminal, according to the user's config.

    Args:
        send: Writes control sequences to the terminal.
    """

    def __init__(self, send: Callable[[str], None], wanted: Settings, environ: Mapping[str, str]) -> None:
        self._send = send
        self._wanted = wanted
        self._deaf = environ.get("TERM", "") in DEAF_TERMS
        self._inside_tmux = bool(environ.get("TMUX"))
        self._title = ""
        self._went_on = False

    def tell(self, run: str, word: str, *, over: bool) -> None:
        """Show the state of the run; announce its end once, and only if the run was seen running before."""
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
    # A semicolon would begin another field, and `9;4;` would set a progress bar.
    return clean(text).replace(";", ",")[:120]


def through_tmux(sequence: str) -> str:
    """Wrap a sequence so that tmux forwards it to its terminal, with every escape character in it doubled."""
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"


_COLON = ("code", "codium", "code-insiders", "cursor", "zed", "subl", "hx", "helix")
"""Editors that accept FILE:LINE; the first four need --goto before it."""
_GOTO = _COLON[:4]
_IN_TERMINAL = ("vi", "vim", "nvim", "nano", "pico", "micro", "kak", "hx", "helix", "joe", "mcedit")


def needs_terminal(command: Sequence[str]) -> bool:
    """Whether an editor runs in the terminal."""
    return Path(command[0]).name in _IN_TERMINAL


def editor_command(environ: Mapping[str, str], path: Path, line: int = 0) -> list[str]:
    """Return the command that opens `path` at `line` (from 1; 0: none) in $VISUAL, $EDITOR or vi. Raises InputError."""
    try:
        words = shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "vi")
    except ValueError:
        words = []
    if not words or shutil.which(words[0], path=environ.get("PATH", os.defpath)) is None:
        raise InputError(f"editor {words[0] if words else '$EDITOR'} not found", "Set EDITOR to an installed editor.")
    name = Path(words[0]).name
    if not line:
        return [*words, os.fspath(path)]
    if name in _COLON:
        return [*words, *(["--goto"] if name in _GOTO else []), f"{path}:{line}"]
    # vi, vim, nano, emacs, micro, kak and others take +LINE.
    return [*words, f"+{line}", os.fspath(path)]
