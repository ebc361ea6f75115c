"""A file in the user's own editor, at a line."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from textual.app import App, SuspendNotSupported

from runner.errors import InputError

_COLON = ("code", "codium", "code-insiders", "cursor", "zed", "subl", "hx", "helix")
"""Editors that accept FILE:LINE; the first four need --goto before it."""
_GOTO = _COLON[:4]


def editor_command(environ: Mapping[str, str], path: Path, line: int = 0) -> list[str]:
    """The words that open `path` at `line` (from 1; 0: anywhere): $VISUAL, $EDITOR, else vi. Raises InputError."""
    try:
        words = shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "vi")
    except ValueError:
        words = []
    if not words or shutil.which(words[0], path=environ.get("PATH", os.defpath)) is None:
        raise InputError(f"the editor {words[0] if words else '$EDITOR'} is not there", "Set EDITOR to one that is.")
    name = Path(words[0]).name
    if not line:
        return [*words, os.fspath(path)]
    if name in _COLON:
        return [*words, *(["--goto"] if name in _GOTO else []), f"{path}:{line}"]
    # vi, vim, nano, emacs, micro, kak and others take +LINE.
    return [*words, f"+{line}", os.fspath(path)]


def open_editor(app: App[None], environ: Mapping[str, str], path: Path, line: int = 0) -> None:
    """Run the editor in the terminal until it exits. Raises InputError if it cannot start."""
    command = editor_command(environ, path, line)
    try:
        with app.suspend():
            subprocess.run(command, check=False)
    except (SuspendNotSupported, OSError) as error:
        raise InputError(f"{command[0]} cannot be opened here: {error}", "Quit, and open the file by hand.") from None
