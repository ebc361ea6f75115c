"""The user's own editor: the words of the command that opens a file in it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from disttui.runner.errors import InputError

_COLON = ("code", "codium", "code-insiders", "cursor", "zed", "subl", "hx", "helix")
"""Editors that accept FILE:LINE; the first four need --goto before it."""
_GOTO = _COLON[:4]
_IN_TERMINAL = ("vi", "vim", "nvim", "nano", "pico", "micro", "kak", "hx", "helix", "joe", "mcedit")


def needs_terminal(command: Sequence[str]) -> bool:
    """Whether an editor cannot work without a terminal."""
    return Path(command[0]).name in _IN_TERMINAL


def editor_command(environ: Mapping[str, str], path: Path, line: int = 0) -> list[str]:
    """The words that open `path` at `line` (from 1; 0: anywhere): $VISUAL, $EDITOR, else vi. Raises InputError."""
    try:
        words = shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "vi")
    except ValueError:
        words = []
    if not words or shutil.which(words[0], path=environ.get("PATH", os.defpath)) is None:
        raise InputError(f"editor {words[0] if words else '$EDITOR'} not found", "Set EDITOR to one that is.")
    name = Path(words[0]).name
    if not line:
        return [*words, os.fspath(path)]
    if name in _COLON:
        return [*words, *(["--goto"] if name in _GOTO else []), f"{path}:{line}"]
    # vi, vim, nano, emacs, micro, kak and others take +LINE.
    return [*words, f"+{line}", os.fspath(path)]
