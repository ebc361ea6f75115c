"""Counting what is done, which is the same on every machine; the seconds it takes are not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Calls:
    """How many functions were called, those of C among them."""

    number: int = 0


@contextmanager
def counted() -> Iterator[Calls]:
    """Count the calls that this thread makes in the block: an algorithm that got worse makes more of them."""
    calls, before = Calls(), sys.getprofile()

    def profile(frame: Any, event: str, argument: Any) -> None:
        calls.number += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)
