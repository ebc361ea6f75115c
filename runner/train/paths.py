"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path

from .problem import Problem


def user_path(text: str) -> Path:
    """The path with `~` replaced. Raises Problem where it names an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise Problem(f"{text}: there is no such user here: write the whole path") from None
