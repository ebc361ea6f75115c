"""Files and folders that tests make in one line."""

from __future__ import annotations

from pathlib import Path


def new_file(path: Path, content: str | bytes = "", mode: int | None = None) -> Path:
    """A file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if mode is not None:
        path.chmod(mode)
    return path


def new_folder(path: Path, mode: int | None = None) -> Path:
    """A folder that was not there, and those above it."""
    path.mkdir(parents=True)
    if mode is not None:
        path.chmod(mode)
    return path
