"""Files, folders and disks that tests make in one line."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


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


@contextmanager
def tmpfs(folder: Path, options: str = "mode=0700") -> Iterator[Path]:
    """A disk in memory at a folder, which is made where it is missing."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
