"""The interpreter, set for an app in which threads work while keys are pressed."""

from __future__ import annotations

import gc
import sys

SWITCH = 0.001
"""Seconds that a thread may keep the interpreter from the event loop, which asks for it some ten times per key."""


def settle() -> None:
    """Spare the collector what has come to stay: it would look through all of it while somebody types, for 50 ms."""
    sys.setswitchinterval(SWITCH)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def unsettle() -> None:
    """Let what stayed be collected, now that it may go."""
    gc.unfreeze()
