"""What the job prints for its user, and the error that a user can correct."""

from __future__ import annotations

import sys
from pathlib import Path


class Problem(Exception):
    """A condition that the user can correct, as one sentence with its cure.

    Args:
        text: What is wrong, where, and what to do about it.
        host_only: Whether only this host has it: then its own first rank prints it, otherwise rank 0 does for all.
        code: The exit code: 2 for bad input, 1 for a training that failed.
    """

    def __init__(self, text: str, *, host_only: bool = False, code: int = 2) -> None:
        super().__init__(text)
        self.host_only = host_only
        self.code = code


def say(text: str) -> None:
    """Print a line in one write: unbuffered, print makes two, and ranks that share a terminal would mix them."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def user_path(text: str) -> Path:
    """The path with `~` expanded. Raises Problem if it names an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise Problem(f"{text}: unknown user: write the whole path") from None
