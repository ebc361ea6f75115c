"""Waiting for what another process or thread does, without sleeping longer than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0


def wait_for(condition: Callable[[], Any], what: str = "it", timeout: float = PATIENCE) -> Any:
    """The first true answer of `condition`."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {timeout} s")
