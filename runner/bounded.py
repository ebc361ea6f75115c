"""Values that strangers have sent: of the kind and within the bounds that are asked for, or as if they were absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from runner.text import clean

_Read = TypeVar("_Read")

MOST = 1 << 53
"""Whole numbers are below: a float holds each of them exactly."""


def whole(value: Any, below: int = MOST) -> int | None:
    """`value` if it is a whole number from 0 on and below a bound, else None."""
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
    return value if usable else None


def text(value: Any, most: int) -> str:
    """`value` if it is text: safe to show, of at most so many characters; else empty."""
    return clean(value[:most]) if isinstance(value, str) else ""


def each(items: Any, read: Callable[[Mapping[str, Any]], _Read | None], most: int) -> tuple[_Read, ...]:
    """What `read` makes of the first `most` objects of a list, without those that it makes None of."""
    if not isinstance(items, list):
        return ()
    found = (read(item) for item in items[:most] if isinstance(item, dict))
    return tuple(item for item in found if item is not None)
