"""Secret values that this process knows: text that is shown has `***` in their place."""

from __future__ import annotations

import json
import threading
from urllib.parse import quote

MASK = "***"
SHORTEST = 6
"""Characters: a shorter value is part of too many words to be masked."""
_MOST = 1000
"""Values that are known at a time; there is no use for more, and each costs time on every line."""

_lock = threading.Lock()
_needles: tuple[str, ...] = ()
"""What is looked for, the longest first; no line breaks in any."""


def learn(value: str) -> None:
    """Mask a value from now on, also as JSON, Python and web addresses write it; of several lines each by itself."""
    global _needles  # noqa: PLW0603 - what is secret is so for the whole process
    found = set()
    for line in {value, *value.splitlines()}:
        text = line.strip()
        found |= {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
        found.add(quote(text.encode("utf-8", "replace"), safe=""))
    usable = {text for text in found if len(text) >= SHORTEST and "\n" not in text}
    with _lock:
        if not usable.issubset(_needles):
            _needles = tuple(sorted({*_needles, *usable}, key=lambda text: (-len(text), text))[:_MOST])


def forget_all() -> None:
    """Mask nothing any more."""
    global _needles  # noqa: PLW0603
    with _lock:
        _needles = ()


def masked(text: str) -> str:
    """The text with every known secret value masked."""
    for needle in _needles:
        if needle in text:
            text = text.replace(needle, MASK)
    return text
