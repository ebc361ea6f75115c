"""Waiting for what another process or thread does, without sleeping longer than it takes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 60.0


class Patience:
    """A limit on waiting. Between two looks at most a second counts: a machine may stand still for minutes."""

    def __init__(self, seconds: float) -> None:
        self._left, self._looked = seconds, time.monotonic()

    @property
    def ended(self) -> bool:
        now = time.monotonic()
        self._left -= min(now - self._looked, 1.0)
        self._looked = now
        return self._left <= 0


def wait_for(condition: Callable[[], Any], what: str = "it", timeout: float = PATIENCE) -> Any:
    """The first true answer of `condition`."""
    patience = Patience(timeout)
    while not (found := condition()):
        assert not patience.ended, f"{what}: not within {timeout} s"
        time.sleep(0.01)
    return found


def stands_in(thread: threading.Thread, function: str) -> bool:
    """Whether a thread is inside of a Python function of this name."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def anybody_stands_in(function: str) -> bool:
    """Whether another thread of this process is inside of a Python function of this name."""
    others = [one for one in threading.enumerate() if one is not threading.current_thread()]
    return any(stands_in(one, function) for one in others)


def wait_until_stuck(thread: threading.Thread, function: str) -> None:
    """Until a thread is in this function and was at the same point of it, or of what it calls, at 20 looks in a row."""
    looks: list[object] = []

    def stuck() -> bool:
        frame = sys._current_frames().get(thread.ident or 0) if stands_in(thread, function) else None
        looks.append(frame and frame.f_code)
        return None not in looks[-20:] and len(looks) >= 20 and len(set(looks[-20:])) == 1

    wait_for(stuck, f"a thread that is stuck in {function}")


def seconds_used(pid: int) -> float:
    """Processor time of a process on Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for_work(pid: int, seconds: float) -> None:
    """Until a process has used so much more of a processor, however long it waits for its turn."""
    begun = seconds_used(pid)
    wait_for(lambda: seconds_used(pid) >= begun + seconds, f"{seconds} s of work of process {pid}")
