"""Whether the ranks of this host have joined a process group: hosts that train separately look just as busy."""

from __future__ import annotations

import os
from typing import Callable, Iterable

from ...protocol.events import Event, Ungrouped
from .. import procs
from ..host import HostPart
from ..journal import stamp

_SOLITUDE = 20.0
"""Seconds after which ranks that train should have joined their process group."""
_EVERY = (1.0, 10.0)
"""Seconds between two checks, in the first minute and later: reading a large process table takes time."""
_HELPERS = ("multiprocessing.resource_tracker", "torch/_inductor/", "torch._inductor")
"""Python programs that join no process group, however they are started."""


class Company:
    """Emits `ungrouped` where ranks work and none of this host has joined a process group.

    Not where that is unknown: for ranks that are not instrumented, for ranks of one MPI world that have loaded MPI, by
    which they may work together, and for ranks that start further Python programs, as `accelerate launch` and
    `torch.multiprocessing.spawn` do, which may join in their place.

    Args:
        say: Takes an event.
    """

    def __init__(self, host: HostPart, attempt: int, say: Callable[[Event], None]) -> None:
        target = host.spec["target"]
        self._known = host.world_size > 1 and bool(host.launch["instrument"]) and target["kind"] != "command"
        self._in_mpi_world = host.launcher == "mpirun"
        self._attempt = attempt
        self._say = say
        self._began: float | None = None
        self._next = 0.0
        self._grouped = False
        self._reported = False

    def join(self) -> None:
        """A rank has joined a process group."""
        self._grouped = True
        if self._reported:
            self._reported = False
            self._say(Ungrouped(t=stamp(), e="ungrouped", attempt=self._attempt, over=True))

    def look(self, pids: Iterable[int], trains: bool, now: float) -> None:
        """Check the ranks. `trains`: they have written metrics; `now` is monotonic seconds."""
        pids = list(pids)
        if self._grouped or self._reported or not self._known or not pids or now < self._next:
            return
        self._began = now if self._began is None else self._began
        self._next = now + _EVERY[now - self._began > 60]
        self._known = not (self._in_mpi_world and _have_mpi(pids)) and not _start_programs(pids)
        if self._known and trains and now - self._began >= _SOLITUDE:
            self._tell()

    def end(self) -> None:
        """The ranks have ended with exit code 0."""
        if self._began is not None and self._known and not self._grouped and not self._reported:
            self._tell()

    def _tell(self) -> None:
        self._reported = True
        self._say(Ungrouped(t=stamp(), e="ungrouped", attempt=self._attempt))


def _have_mpi(pids: Iterable[int]) -> bool:
    """Whether one of these ranks has loaded the library of MPI."""
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                if b"/libmpi." in file.read():
                    return True
        except OSError:
            pass  # it has ended
    return False


def _start_programs(pids: Iterable[int]) -> bool:
    """Whether these ranks have started other Python programs; plain forks are DataLoader workers."""
    found = procs.table()
    for pid in pids:
        own = procs.command(pid)
        for below in procs.descendants(found, pid):
            command = procs.command(below)
            python = os.path.basename(command.split(" ", 1)[0]).startswith("python")
            if python and command != own and not any(helper in command for helper in _HELPERS):
                return True
    return False
