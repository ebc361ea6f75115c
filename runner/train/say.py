"""Lines for people, on standard output."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write a line by one write: unbuffered, print makes two, and ranks that share a terminal tear them."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
