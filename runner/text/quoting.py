"""Quotes words for a shell: the result can be copied, and contains no terminal control characters."""

from __future__ import annotations

import re
import shlex

from runner.text import is_clean


def quote(text: str) -> str:
    """One word for a POSIX shell that evaluates to `text` byte for byte, without control characters."""
    if is_clean(text):
        return shlex.quote(text)
    # A line break needs only quotes; control characters are written as octal numbers.
    return "".join(_piece(piece) for piece in re.split(r"(\n)", text))


def _piece(text: str) -> str:
    if not text or text == "\n" or is_clean(text):
        return shlex.quote(text) if text else ""
    octal = "".join(f"\\{byte:03o}" for byte in text.encode("utf-8", "surrogatepass"))
    return f"\"$(printf '{octal}')\""
