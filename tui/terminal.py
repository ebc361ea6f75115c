"""The terminal around the app: the user's clipboard, editor and pager."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from textual.app import App, SuspendNotSupported

from disttui.runner.errors import InputError
from disttui.runner.user.terminal import DEAF_TERMS, editor_command, through_tmux

OSC_LIMIT = 74_000
"""Maximum number of base64 characters that xterm, tmux and others accept in one OSC 52 sequence."""
_PATIENCE = 3.0
_DEAF = ("Apple_Terminal",)


class Copied(NamedTuple):
    """The outcome of copying a text."""

    words: str
    """Text for the toast: how much was copied, and how."""
    sequence: str = ""
    """A control sequence that the caller must still write to the terminal; may be empty."""
    good: bool = True
    """Whether the text was copied; otherwise it is only in a file, or nowhere."""


def copy(text: str, environ: Mapping[str, str]) -> Copied:
    """Copy by the first method that works: tmux, a native tool, OSC 52, a file. Blocks up to 3 s per command.

    Native tools are skipped over SSH, where they would fill the clipboard of the remote machine. Terminals do not
    acknowledge OSC 52, so it is tried after methods that report success, and only for texts within OSC_LIMIT.
    """
    size = _size(text)
    inside_tmux = bool(environ.get("TMUX"))
    sequence = _osc52(text, environ, inside_tmux)
    if inside_tmux and _fed(["tmux", "load-buffer", "-w", "-"], text, environ):
        return Copied(f"{size} copied (tmux buffer{' and OSC 52' if sequence else ''})", sequence)
    for command in _native(environ):
        if _fed(command, text, environ):
            return Copied(f"{size} copied ({command[0]})")
    if sequence:
        return Copied(f"{size} copied (OSC 52{' through tmux' if inside_tmux else ''})", sequence)
    return _to_file(text, size)


def _native(environ: Mapping[str, str]) -> list[list[str]]:
    if "SSH_CONNECTION" in environ or "SSH_TTY" in environ:
        return []
    ways = [["pbcopy"], ["clip.exe"]]
    if environ.get("WAYLAND_DISPLAY"):
        ways.append(["wl-copy"])
    if environ.get("DISPLAY"):
        ways += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    return ways


def _fed(command: list[str], text: str, environ: Mapping[str, str]) -> bool:
    found = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    if not found:
        return False
    try:
        done = subprocess.run(
            [found, *command[1:]], input=text.encode(), env=dict(environ), timeout=_PATIENCE, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _osc52(text: str, environ: Mapping[str, str], inside_tmux: bool) -> str:
    if environ.get("TERM", "") in DEAF_TERMS or environ.get("TERM_PROGRAM") in _DEAF:
        return ""
    coded = base64.b64encode(text.encode()).decode()
    if len(coded) > OSC_LIMIT:
        return ""
    sequence = f"\x1b]52;c;{coded}\x07"
    return through_tmux(sequence) if inside_tmux else sequence


def _to_file(text: str, size: str) -> Copied:
    try:
        with tempfile.NamedTemporaryFile("w", prefix="disttui-", suffix=".txt", delete=False, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return Copied(f"cannot copy: no clipboard, and cannot write a file: {error.strerror}", good=False)
    return Copied(f"{size} written to {file.name} (no clipboard)", good=False)


def _size(text: str) -> str:
    lines = text.count("\n") + (not text.endswith("\n"))
    return f"{lines:,} lines" if lines != 1 else f"{len(text):,} characters"


def open_editor(app: App[None], environ: Mapping[str, str], path: Path, line: int = 0) -> None:
    """Run the editor in the terminal until it exits. Raises InputError if it cannot start."""
    _run_in_terminal(app, editor_command(environ, path, line))


def pager_command(environ: Mapping[str, str], path: Path, line: int) -> list[str]:
    """The command that opens `path` at `line` (from 1): $PAGER, else less. Raises InputError if it is not installed."""
    # `more` only if the user has set it: it passes escape sequences from a host to the terminal.
    try:
        words = shlex.split(environ.get("PAGER", "")) or ["less"]
    except ValueError as error:
        raise InputError(f"PAGER: {error}".lower(), "Set PAGER to a command such as less.") from None
    if shutil.which(words[0]) is None:
        raise InputError(f"the pager {words[0]} is not installed", "Set PAGER to an installed pager.")
    # less shows control characters as text; options such as -R would pass a host's escape sequences to the terminal.
    at = [f"+{line}"] if Path(words[0]).name in ("less", "more", "most", "vi", "vim", "nvim", "nano") else []
    return [*words, *at, str(path)]


def open_pager(app: App[None], environ: Mapping[str, str], path: Path, line: int) -> None:
    """Run the pager in the terminal until it exits. Raises InputError if it cannot start."""
    safe = {name: value for name, value in os.environ.items() if name not in ("LESS", "LESSOPEN")}
    _run_in_terminal(app, pager_command(environ, path, line), {**safe, "LESSSECURE": "1"})


def _run_in_terminal(app: App[None], command: list[str], environ: Mapping[str, str] | None = None) -> None:
    try:
        with app.suspend():
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; it would end the app
            try:
                subprocess.run(command, check=False, env=environ, preexec_fn=_take_ctrl_c)
            finally:
                signal.signal(signal.SIGINT, handler)
    except (SuspendNotSupported, OSError) as error:
        raise InputError(f"cannot open {command[0]} here: {error}", "Quit, and open the file in a shell.") from None


def _take_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
