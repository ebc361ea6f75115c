"""A file in the user's own editor, at a line."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from textual.app import App, SuspendNotSupported

from runner.errors import InputError
from runner.user.editor import editor_command


def open_editor(app: App[None], environ: Mapping[str, str], path: Path, line: int = 0) -> None:
    """Run the editor in the terminal until it exits. Raises InputError if it cannot start."""
    command = editor_command(environ, path, line)
    try:
        with app.suspend():
            subprocess.run(command, check=False)
    except (SuspendNotSupported, OSError) as error:
        raise InputError(f"{command[0]} cannot be opened here: {error}", "Quit, and open the file by hand.") from None
