"""Masks the secret values that this process knows: `***` replaces them in printed text."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from urllib.parse import quote

MASK = "***"
SHORTEST = 6
"""Characters of the shortest masked value: shorter ones are part of too many words."""

_lock = threading.Lock()
_known: frozenset[str] = frozenset()
_guessed: tuple[str, ...] = ()
"""Suspected values, newest last."""
_needles: tuple[str, ...] = ()
"""All texts to mask, longest first; none contains a line break."""


def learn(value: str) -> None:
    """Mask a secret from now on, also as encoded in JSON, Python and URLs; each of several lines on its own."""
    global _known  # noqa: PLW0603 - what is secret is so for the whole process
    new = _spellings(value)
    with _lock:
        if not new <= _known:
            _known |= new
            _gather()


def suspect(value: str) -> None:
    """Mask what only looks like a secret; only the newest 1000 encodings of these values are kept."""
    global _guessed  # noqa: PLW0603
    new = _spellings(value)
    with _lock:
        if not new.issubset(_guessed):
            # Each costs time on every line, and an attacker may cause any number of them
            _guessed = tuple({**dict.fromkeys(_guessed), **dict.fromkeys(sorted(new))})[-1000:]
            _gather()


def _spellings(value: str) -> set[str]:
    found = set()
    for line in {value, *value.splitlines()}:
        text = line.strip()
        found |= {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
        found.add(quote(text.encode("utf-8", "replace"), safe=""))
    return {text for text in found if len(text) >= SHORTEST and "\n" not in text}


def _gather() -> None:
    global _needles  # noqa: PLW0603
    _needles = _longest_first({*_known, *_guessed})


def _longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(texts, key=lambda text: (-len(text), text)))


def forget_all() -> None:
    """Forget all secrets."""
    global _known, _guessed
    with _lock:
        _known, _guessed = frozenset(), ()
        _gather()


def masked(text: str, *, guesses: bool = True) -> str:
    """Return the text with every secret masked.

    Args:
        guesses: Also mask suspected values. Not for text to be confirmed, in which its author could hide words.
    """
    for needle in _needles if guesses else _longest_first(_known):
        if needle in text:
            text = text.replace(needle, MASK)
    return text
