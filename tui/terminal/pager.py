"""A log in the user's own pager."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from textual.app import App, SuspendNotSupported

from runner.errors import InputError


def pager_command(environ: Mapping[str, str], path: Path, line: int) -> list[str]:
    """The words that open `path` at `line` (from 1): $PAGER, else less. Raises InputError if it is not installed."""
    # `more` only if the user has set it: it passes escape sequences from a host to the terminal.
    words = shlex.split(environ.get("PAGER", "")) or ["less"]
    if shutil.which(words[0]) is None:
        raise InputError(f"the pager {words[0]} is not there", "Set PAGER to one that is.")
    # less shows control characters as text; options such as -R would pass a host's escape sequences to the terminal.
    at = [f"+{line}"] if Path(words[0]).name in ("less", "more", "most", "vi", "vim", "nvim", "nano") else []
    return [*words, *at, str(path)]


def open_pager(app: App[None], environ: Mapping[str, str], path: Path, line: int) -> None:
    """Run the pager in the terminal until it exits. Raises InputError if it cannot start."""
    command = pager_command(environ, path, line)
    calm = {name: value for name, value in os.environ.items() if name not in ("LESS", "LESSOPEN")}
    try:
        with app.suspend():
            subprocess.run(command, check=False, env={**calm, "LESSSECURE": "1"})
    except (SuspendNotSupported, OSError) as error:
        raise InputError(f"{command[0]} cannot be opened here: {error}", "Quit, and open the file by hand.") from None
