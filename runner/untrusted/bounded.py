"""Checks untrusted values: one of the wrong type or out of its bounds counts as absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from runner.text import clean

_Read = TypeVar("_Read")

MOST = 1 << 53
"""The bound of whole numbers: a float holds every smaller one exactly."""


def whole(value: Any, below: int = MOST) -> int | None:
    """`value` if it is a whole number of at least 0 and below the bound, else None."""
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
    return value if usable else None


def text(value: Any, most: int) -> str:
    """`value` if it is text, made safe to show and cut to `most` characters; else empty."""
    return clean(value[:most]) if isinstance(value, str) else ""


def each(items: Any, read: Callable[[Mapping[str, Any]], _Read | None], most: int) -> tuple[_Read, ...]:
    """The results of `read` for the first `most` objects of a list, without None."""
    if not isinstance(items, list):
        return ()
    found = (read(item) for item in items[:most] if isinstance(item, dict))
    return tuple(item for item in found if item is not None)
