"""Writes telemetry of a run's host once a second, and derives alarms and reasons for slow ranks from it.

Untagged descendants of the ranks are recorded while their descent is visible: a daemon that has cleared its environment
is the supervisor's child as long as that lives. After supervisor and warden have been killed, nothing shows where it
came from.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Iterable, List, Literal, NamedTuple, Sequence, Set

from ...protocol.events import Alarm, AlarmKind
from .. import procs
from ..host import HostPart
from ..journal import Journal, read_json, stamp, write_json

if TYPE_CHECKING:
    from ...protocol.files import Spec
    from ...protocol.telemetry import GpuUse, Telemetry

_SECONDS = 10
"""Telemetry records from which reasons for slowness are derived."""


class Sampling:
    """Samples in a thread, since a dead file server may block it forever.

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
        threading.Thread(target=self._work, daemon=True).start()

    def end(self) -> None:
        """Stop writing records; one that is being written has a second to finish."""
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
        watch = Alarms(_gpus(self._host.spec), self._is_ours)
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
                due = time.monotonic() + 3.0  # seconds between two reads of the whole process table
                descent.look()
            self._events.extend(watch.look(record))
            self._shows = shows(list(recent), os.cpu_count() or 1)
            time.sleep(1.0)

    def _is_ours(self, pid: int) -> bool | None:
        if procs.read(pid) is None:
            return None  # of another PID namespace
        return procs.owner(pid) == os.getuid() and procs.tag(pid).startswith(f"{self._host.run}/")


def _gpus(spec: Spec) -> list[int] | None:
    """The GPUs whose alarms concern this run; None means all."""
    if spec["gpus"] is not None:
        return list(spec["gpus"])
    return None if "nccl" in str(spec["backend"]) else []


_GIB = 1 << 30
_DISK_LEFT = 0.05
_SWAPPING = 1 << 20
"""Bytes per second, in and out together."""
_LASTING = 3
"""Consecutive samples (seconds) for which an alarm's reason must hold, or be absent."""


_GROWING = 9
"""Consecutive minutes in which the least memory use must have risen."""
_SOON = 3600.0
"""Seconds within which memory must fill up to be reported."""


class _Trend:
    """Memory that fills up: judged by the least use of each minute, so that what is freed again is ignored."""

    def __init__(self) -> None:
        self._least: collections.deque[float] = collections.deque(maxlen=_GROWING + 2)
        self._samples = 0

    def left(self, used: float, total: float) -> float | None:
        """Process a second's sample; returns the seconds until memory is full, None if not soon or not steadily so."""
        if self._samples % 60 == 0:
            self._least.append(used)
        self._samples += 1
        self._least[-1] = min(self._least[-1], used)
        whole = list(self._least)[:-1]  # the last minute is not over
        rises = [whole[at] - whole[at - 1] for at in range(1, len(whole))]
        early, late = sum(rises[: _GROWING // 2]), sum(rises[-(_GROWING // 2) :])
        # Growth that slows down is a cache that fills, and less than a hundredth is a fluctuation.
        if len(rises) < _GROWING or min(rises) <= 0 or late < 0.8 * early or sum(rises) < 0.01 * total:
            return None
        left = (total - used) / late * 60 * (_GROWING // 2)
        return left if left < _SOON else None


class _Reason(NamedTuple):
    kind: AlarmKind
    text: str
    value: float


class Alarms:
    """Turns telemetry records into `alarm` events: one when an alarm begins, one (`over`) when it ends.

    gpus: The indices of the GPUs that the run uses, None for all.
        ours: Whether a process (by pid) belongs to this run; None for a process that is not on this host.
        ours: Whether a process (by pid) belongs to this run; None for a process that is not on this host.
    """

    def __init__(self, gpus: Iterable[int] | None, ours: Callable[[int], bool | None]) -> None:
        self._gpus = None if gpus is None else set(gpus)
        self._ours = ours
        self._seen: dict[tuple[str, int], tuple[int, _Reason]] = {}
        self._begun: dict[tuple[str, int], _Reason] = {}
        self._trends: dict[int, _Trend] = {}
        """Trends of the GPUs, and of the host (-1)."""

    def look(self, record: Telemetry) -> list[Alarm]:
        """Process a telemetry record; returns the resulting events."""
        now = dict(self._reasons(record))
        events = []
        for place, reason in now.items():
            count = self._seen[place][0] + 1 if place in self._seen else 1
            self._seen[place] = (min(count, _LASTING), reason)
            if count >= _LASTING and place not in self._begun:
                self._begun[place] = reason
                events.append(_event(reason))
        for place in [place for place in self._seen if place not in now]:
            count, reason = self._seen[place]
            if count > 1:
                self._seen[place] = (count - 1, reason)
                continue
            del self._seen[place]
            if place in self._begun:
                events.append({**_event(self._begun.pop(place)), "over": True})
        return events

    def _reasons(self, record: Telemetry) -> Iterable[tuple[tuple[str, int], _Reason]]:
        free, total = record.get("disk_free"), record.get("disk_total")
        if free is not None and total and free < _DISK_LEFT * total:
            text = f"the disk of the run's folder is nearly full: {free / _GIB:.1f} of {total / _GIB:.0f} GiB free"
            yield ("disk", 0), _Reason("disk", text, free)
        free, total = record.get("inodes_free"), record.get("inodes_total")
        if free is not None and total and free < _DISK_LEFT * total:
            text = f"the disk of the run's folder is nearly out of inodes: {free:,} free"
            yield ("disk", 1), _Reason("disk", text, free)
        swapping = record.get("swap_rate", 0)
        if swapping > _SWAPPING:
            yield ("swap", 0), _Reason("swap", f"the host is swapping, {swapping / (1 << 20):.0f} MiB/s", swapping)
        yield from self._trend(-1, "the host's memory", record)
        for gpu in record.get("gpus", []):
            if self._gpus is None or gpu["index"] in self._gpus:
                yield from self._gpu_reasons(gpu)
                yield from self._trend(gpu["index"], f"GPU {gpu['index']}: its memory", gpu)

    def _trend(self, index: int, what: str, use: Telemetry | GpuUse) -> Iterable[tuple[tuple[str, int], _Reason]]:
        used, total = use.get("mem_used"), use.get("mem_total")
        if used is None or not total:
            return
        left = self._trends.setdefault(index, _Trend()).left(used, total)
        if left is not None:
            text = f"{what} grows steadily, {used / _GIB:.1f} of {total / _GIB:.1f} GiB: full in {left / 60:.0f} min"
            yield ("memory", index), _Reason("memory", text, used)

    def _gpu_reasons(self, gpu: GpuUse) -> Iterable[tuple[tuple[str, int], _Reason]]:
        index = gpu["index"]
        used, total = gpu.get("mem_used"), gpu.get("mem_total")
        if used is not None and total and used > 0.97 * total:
            text = f"GPU {index}: memory nearly full, {used / _GIB:.1f} of {total / _GIB:.1f} GiB"
            yield ("gpu memory", index), _Reason("gpu memory", text, used)
        if gpu.get("throttle"):
            yield ("throttle", index), _Reason("throttle", _throttled(gpu), gpu.get("temp", 0))
        foreign = [pid for pid in gpu.get("pids", []) if self._ours(pid) is False]
        if foreign:
            text = f"GPU {index} is used by another program (pid {', '.join(map(str, foreign))})"
            yield ("foreign gpu", index), _Reason("foreign gpu", text, foreign[0])


def shows(records: Sequence[Telemetry], cores: int) -> list[str]:
    """Conditions in a host's last telemetry records (newest last) that may slow its ranks down, as sentences.

    Args:
        cores: The host's number of CPU cores.
    """
    if not records:
        return []
    newest = records[-1]
    found = []
    load = newest.get("load", 0.0)
    if load > 1.5 * cores:
        found.append(f"load {load:.0f} on {cores} cores")
    steal = _mean(records, "steal")
    if steal > 5.0:
        found.append(f"{steal:.0f} % of its CPU time is stolen by other virtual machines")
    swapping = _mean(records, "swap_rate")
    if swapping > _SWAPPING:
        found.append(f"swapping {swapping / (1 << 20):.0f} MiB/s")
    waiting = _mean(records, "io_wait")
    if waiting > 20.0:
        found.append(f"its processes wait for the disk {waiting:.0f} % of the time")
    for gpu in newest.get("gpus", []):
        if gpu.get("throttle"):
            found.append(_throttled(gpu))
    return found


def _throttled(gpu: GpuUse) -> str:
    return f"GPU {gpu['index']} is throttled by heat" + (f" at {gpu['temp']:g} °C" if "temp" in gpu else "")


def _mean(records: Sequence[Telemetry], name: Literal["steal", "swap_rate", "io_wait"]) -> float:
    values = [record[name] for record in records if name in record]
    return sum(values) / len(values) if values else 0.0


def _event(reason: _Reason) -> Alarm:
    return Alarm(t=stamp(), e="alarm", kind=reason.kind, text=reason.text, value=reason.value)


UNTAGGED = "untagged.json"
_MOST_NOTED = 1000


class Descent:
    """Keeps the record of one run folder's descendants, in the supervisor's process."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, UNTAGGED)
        self._noted: List[List[int]] = []

    def look(self) -> None:
        """Record the present descendants. Never raises OSError: a failed write is retried at the next call."""
        table = procs.table()
        us = table.get(os.getpid())
        if us is None:
            return
        # Helpers of the supervisor stay in its session; launchers get their own.
        below = [table[pid] for pid in procs.descendants(table, us.pid)]
        found = [proc for proc in below if proc.session != us.session and not proc.dead and not procs.tag(proc.pid)]
        now = sorted([proc.pid, proc.start] for proc in found)[:_MOST_NOTED]
        if now == self._noted:
            return
        try:
            ours = {"boot_id": procs.boot_id(), "pid_namespace": procs.pid_namespace()}
            write_json(self._path, {**ours, "processes": now})
            self._noted = now
        except OSError:
            pass


def noted(folder: str) -> Set[int]:
    """Return the recorded processes that still run, in this boot, as this user."""
    data = read_json(os.path.join(folder, UNTAGGED))
    processes = data.get("processes") if isinstance(data, dict) else None
    here = (procs.boot_id(), procs.pid_namespace())
    if not isinstance(processes, list) or (data.get("boot_id"), data.get("pid_namespace")) != here:
        return set()
    pairs = [one for one in processes[:_MOST_NOTED] if isinstance(one, list) and len(one) == 2]
    return {pid for pid, start in pairs if isinstance(pid, int) and pid > 1 and _is_it(pid, start)}


def _is_it(pid: int, start: object) -> bool:
    proc = procs.read(pid)
    return proc is not None and not proc.dead and proc.start == start and procs.owner(pid) == os.getuid()
