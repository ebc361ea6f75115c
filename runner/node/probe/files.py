"""Reads small files of the system, which may be missing."""

from __future__ import annotations


def read_text(path: str) -> str:
    """The text of a file (1 MiB at most), empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
