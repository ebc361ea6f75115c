"""Not outliving the process that started this one."""

from __future__ import annotations

import os
import signal
import sys

VARIABLE = "DISTTUI_PARENT"
"""The pid of whoever starts a child that must die with it. Taken out of the environment by the child."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for a TERM when the parent ends; end at once where it already has.

    The kernel watches the parent's thread that did the fork, so that must be one that lives on: its main thread.
    """
    expected = os.environ.pop(VARIABLE, "")
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if expected and expected != str(os.getppid()):
        os._exit(128 + signal.SIGTERM)
