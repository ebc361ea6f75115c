"""Writes telemetry of a run's host once a second, and derives from it alarms and reasons for slow ranks."""

from __future__ import annotations

import collections
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

from ...protocol.events import Alarm
from .. import procs
from ..descent import Descent
from ..host import HostPart
from ..journal import Journal
from . import alarms

if TYPE_CHECKING:
    from ...protocol.files import Spec
    from ...protocol.telemetry import Telemetry

_DESCENT = 3.0
"""Seconds between two reads of the whole process table."""
_SECONDS = 10
"""Telemetry records that the reasons for slowness are derived from."""


class Sampling:
    """Samples in a thread, since a dead file server may block it for ever.

    Args:
        pids: Returns the pid of each running rank.
    """

    def __init__(self, host: HostPart, pids: Callable[[], dict[int, int]]) -> None:
        self._host = host
        self._pids = pids
        self._closed = threading.Event()
        self._writing = threading.Lock()
        self._events: collections.deque[Alarm] = collections.deque()
        self._shows: list[str] = []
        self._sampler: Any = None

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._work, daemon=True).start()

    def end(self) -> None:
        """Write no further record; one that is being written has a second to finish."""
        held = self._writing.acquire(timeout=1.0)
        self._closed.set()
        if held:
            self._writing.release()

    def close(self) -> None:
        """End, and release all resources."""
        self.end()
        if self._sampler:
            self._sampler.close()

    def events(self) -> list[Alarm]:
        """The alarms that have begun or ended since the last call."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def shows(self) -> list[str]:
        """Conditions of this host that may slow its ranks down, as sentences."""
        return self._shows

    def _work(self) -> None:
        from .sampler import Sampler

        records = Journal(self._host.path("telemetry.jsonl"))
        self._sampler = Sampler(self._host.folder)
        watch = alarms.Alarms(_gpus(self._host.spec), self._is_ours)
        descent, due = Descent(self._host.folder), 0.0
        recent: collections.deque[Telemetry] = collections.deque(maxlen=_SECONDS)
        while not self._closed.is_set():
            record = self._sampler.sample(self._pids())
            with self._writing:
                if self._closed.is_set():
                    return
                records.add(record)
            recent.append(record)
            if time.monotonic() >= due:
                due = time.monotonic() + _DESCENT
                descent.look()
            self._events.extend(watch.look(record))
            self._shows = alarms.shows(list(recent), os.cpu_count() or 1)
            time.sleep(1.0)

    def _is_ours(self, pid: int) -> bool | None:
        if procs.read(pid) is None:
            return None  # of another PID namespace
        return procs.tag(pid).startswith(f"{self._host.run}/") and procs.owner(pid) == os.getuid()


def _gpus(spec: Spec) -> list[int] | None:
    """The GPUs whose alarms concern this run; None: all."""
    if spec["gpus"] is not None:
        return list(spec["gpus"])
    return None if "nccl" in str(spec["backend"]) else []
