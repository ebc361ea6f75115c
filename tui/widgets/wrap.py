"""Wraps long lines of prose and paths where a reader expects it."""

from __future__ import annotations

from collections.abc import Iterable

INDENT = "  "
"""Indentation of continuation lines."""


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    """Lines of at most `width` characters, at least 10: broken at a blank, else after a slash, else anywhere."""
    found = []
    for text in lines:
        rest = text
        while len(rest) > width:
            cut = _cut(rest, width)
            found.append(rest[:cut].rstrip())
            rest = INDENT + rest[cut:].lstrip()
        found.append(rest)
    return found


def _cut(text: str, width: int) -> int:
    """Where to break a text that is too long; never within its indentation, which would not shorten it."""
    begin = len(text) - len(text.lstrip()) + len(INDENT) + 1
    blank = text.rfind(" ", begin, width + 1)
    if blank > 0 and (blank > width // 2 or len(text[blank + 1 :].split(" ", 1)[0]) <= width - len(INDENT)):
        return blank
    slash = text.rfind("/", begin, width)
    return slash + 1 if slash > 0 else blank if blank > 0 else width
