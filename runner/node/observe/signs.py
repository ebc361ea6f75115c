"""The signs of life of one host's ranks: their logs, their steps, and whether they have joined a process group."""

from __future__ import annotations

import os
from typing import Callable, Iterable, Sequence

from ...protocol.events import Event, Ungrouped
from ...protocol.gang import SignsOfLife
from ...protocol.metrics import Metrics
from ...protocol.watch import median
from .. import procs
from ..host import HostPart
from ..journal import stamp

_RECENT = 30.0
"""Seconds of recent steps used to compute a rank's usual step time."""
_REPEATED = 3
"""Fewest steps to compute it from: one that is late says nothing about the next."""
_OWN_TIME = ("forward_time", "step_time")
"""Metrics that distinguish a slow rank from a waiting one, best first: under DDP all ranks have the same step time."""

_POINTS = ("step", "epoch")
"""Metrics that show how far a rank's training is."""

_MOST_POINTS = 64
"""Most ranks of a host that are reported: the size of a message is limited."""


class Signs:
    """Collects what the leader needs to detect a stalled gang and a slow rank. Times are monotonic seconds."""

    def __init__(self, ranks: Iterable[int], now: float) -> None:
        self._last = dict.fromkeys(ranks, now)
        self._place: dict[int, tuple[object, ...]] = {}
        self._stepped: dict[int, float] = {}
        """Rank → when it reached its current step."""
        self._times: dict[int, list[tuple[float, float]]] = {rank: [] for rank in self._last}
        self._first: dict[str, dict[str, float]] = {name: {} for name in _POINTS}

    def alive(self, rank: int, now: float) -> None:
        """Note that a rank has logged or stepped."""
        self._last[rank] = now

    def steps(self, rank: int, records: Sequence[Metrics], now: float) -> None:
        """Process a rank's new metrics."""
        self.alive(rank, now)
        for record in records:
            place = tuple(record.get(name) for name in _POINTS)
            # A bar that is redrawn, as by tqdm's monitor, repeats its old step.
            if place != self._place.get(rank) or place == (None, None):
                self._place[rank], self._stepped[rank] = place, now
        found = [next((time for name in _OWN_TIME if (time := _time(r.get(name))) is not None), None) for r in records]
        times = [*self._times[rank], *((now, time) for time in found if time is not None)]
        recent = sum(now - when <= _RECENT for when, _ in times)
        self._times[rank] = times[-min(max(recent, _REPEATED), 500) :]

    def begins(self, rank: int, record: Metrics) -> None:
        """Process a rank's first metrics, which show at which point its training begins."""
        for name in _POINTS:
            value = record.get(name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e12:
                continue
            if len(self._first[name]) < _MOST_POINTS:
                self._first[name][str(rank)] = value

    def message(self, now: float, shows: Sequence[str]) -> SignsOfLife:
        """Return the message `signs` for the leader.

        Args:
            shows: Conditions of the host that may slow its ranks down, as sentences.
        """
        silent = {str(rank): round(now - last, 2) for rank, last in self._last.items()}
        enough = {rank: found for rank, found in self._times.items() if len(found) >= _REPEATED}
        times = {str(rank): median([time for _, time in found]) for rank, found in enough.items()}
        found = SignsOfLife(silent=silent, times=times, shows=list(shows)[:8])
        if self._stepped:
            found["stepped"] = {str(rank): round(now - at, 2) for rank, at in self._stepped.items()}
        if self._first["step"]:
            found["first_steps"] = self._first["step"]
        if self._first["epoch"]:
            found["first_epochs"] = self._first["epoch"]
        return found


def _time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 < value < 1e9 else None


UNGROUPED_AFTER = 20.0
"""Seconds after which ranks that train should have joined their process group."""
_EVERY = (1.0, 10.0)
"""Seconds between two checks, in the first minute and later: reading a large process table takes time."""
_HELPERS = ("multiprocessing.resource_tracker", "torch/_inductor/", "torch._inductor")
"""Python programs that never join a process group, however they are started."""


class ProcessGroupCheck:
    """Emits `ungrouped` if ranks work and none on this host has joined a process group.

    At the end it reports if that is unknown: for ranks that are not instrumented, for ranks of one MPI world that have
    loaded MPI, through which they may work together, and for ranks that start further Python programs, as
    `accelerate launch` and `torch.multiprocessing.spawn` do, which may join instead.

    Args:
        say: Called with an event.
    """

    def __init__(self, host: HostPart, attempt: int, say: Callable[[Event], None]) -> None:
        target = host.spec["target"]
        self._several = host.world_size > 1
        self._known = self._several and bool(host.launch["instrument"]) and target["kind"] != "command"
        self._in_mpi_world = host.launcher == "mpirun"
        self._attempt = attempt
        self._say = say
        self._began: float | None = None
        self._next = 0.0
        self._grouped = False
        self._reported = False

    def join(self) -> None:
        """Note that a rank has joined a process group."""
        self._grouped = True
        if self._reported:
            self._reported = False
            self._say(Ungrouped(t=stamp(), e="ungrouped", attempt=self._attempt, over=True))

    def look(self, pids: Iterable[int], trains: bool, now: float) -> None:
        """Check the ranks. `trains`: whether they have written metrics; `now` is monotonic seconds."""
        pids = list(pids)
        if self._grouped or self._reported or not self._known or not pids or now < self._next:
            return
        self._began = now if self._began is None else self._began
        self._next = now + _EVERY[now - self._began > 60]
        by_mpi = self._in_mpi_world and any(procs.has_mapped(pid, b"/libmpi.") for pid in pids)
        self._known = not by_mpi and not _start_programs(pids)
        if self._known and trains and now - self._began >= UNGROUPED_AFTER:
            self._tell()

    def end(self) -> None:
        """Note that the ranks have ended with exit code 0."""
        if not self._several or self._grouped or self._reported:
            return
        if self._known and self._began is not None:
            self._tell()
        else:
            self._say(Ungrouped(t=stamp(), e="ungrouped", attempt=self._attempt, unknown=True))

    def _tell(self) -> None:
        self._reported = True
        self._say(Ungrouped(t=stamp(), e="ungrouped", attempt=self._attempt))


def _start_programs(pids: Iterable[int]) -> bool:
    """Whether these ranks have started other Python programs; plain forks are DataLoader workers."""
    found = procs.table()
    for pid in pids:
        own = procs.command(pid)
        for below in procs.descendants(found, pid):
            command = procs.command(below)
            python = os.path.basename(procs.arguments(below)[0]).startswith("python")
            if python and command != own and not any(helper in command for helper in _HELPERS):
                return True
    return False
