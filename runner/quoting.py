"""Words for a shell: what is shown can be copied, and steers no terminal."""

from __future__ import annotations

import re
import shlex

from runner.text import clean


def quote(text: str) -> str:
    """One word for a POSIX shell that gives back `text` byte for byte, and shows no control character."""
    if clean(text) == text:
        return shlex.quote(text)
    # A line break needs only quotes; what could steer the terminal is written by its octal numbers.
    return "".join(_piece(piece) for piece in re.split(r"(\n)", text))


def _piece(text: str) -> str:
    if not text or text == "\n" or clean(text) == text:
        return shlex.quote(text) if text else ""
    octal = "".join(f"\\{byte:03o}" for byte in text.encode("utf-8", "surrogatepass"))
    return f"\"$(printf '{octal}')\""
