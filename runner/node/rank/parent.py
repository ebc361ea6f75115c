"""Ends this process together with its parent."""

from __future__ import annotations

import os
import signal
import sys

VARIABLE = "DISTTUI_PARENT"
"""The pid of the parent, set for a child that must die with it. The child removes it from its environment."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for a SIGTERM when the parent ends; exit at once where it already has.

    The kernel watches the thread of the parent that forked, so that thread must live on: the main thread.
    """
    expected = os.environ.pop(VARIABLE, "")
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if expected and expected != str(os.getppid()):
        os._exit(128 + signal.SIGTERM)
