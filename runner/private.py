"""Folders and files that no other user can change, and usually not read, with any umask."""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Make a folder and those above it that are missing, each with `mode`. Raises OSError."""
    missing = []
    above = folder
    while not above.exists() and above != above.parent:
        missing.append(above)
        above = above.parent
    for path in reversed(missing):
        path.mkdir(mode=mode, exist_ok=True)
    folder.mkdir(mode=mode, exist_ok=True)  # raises where a file is in its place


def write(path: Path, text: str) -> None:
    """Write a file; a new one is private to this user. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
