"""Alarms, which begin and end, and the conditions that may slow a host's ranks down, from telemetry. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterable, Literal, NamedTuple, Sequence

from ...protocol.events import Alarm, AlarmKind
from ..journal import stamp

if TYPE_CHECKING:
    from ...protocol.telemetry import GpuUse, Telemetry

_GIB = 1 << 30
_GPU_FULL = 0.97
_DISK_LEFT = 0.05
_SWAPPING = 1 << 20
"""Bytes per second, in and out together."""
_LASTING = 3
"""Consecutive samples (seconds) for which an alarm's reason must hold, or be absent."""
_CROWDED = 1.5
_STOLEN = 5.0
_DISK_WAIT = 20.0


class _Reason(NamedTuple):
    kind: AlarmKind
    text: str
    value: float


class Alarms:
    """Turns telemetry records into `alarm` events: one when an alarm begins, one (`over`) when it ends.

    Args:
        gpus: The indices of the GPUs that the run uses, None: all.
        ours: Whether a process (by pid) belongs to this run; None for a process that is not on this host.
    """

    def __init__(self, gpus: Iterable[int] | None, ours: Callable[[int], bool | None]) -> None:
        self._gpus = None if gpus is None else set(gpus)
        self._ours = ours
        self._seen: dict[tuple[str, int], tuple[int, _Reason]] = {}
        self._begun: dict[tuple[str, int], _Reason] = {}

    def look(self, record: Telemetry) -> list[Alarm]:
        """Process a telemetry record; returns the events that follow from it."""
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
            text = f"the disk of the run's folder is nearly out of inodes: it can take {free:,} more files"
            yield ("disk", 1), _Reason("disk", text, free)
        swapping = record.get("swap_rate", 0)
        if swapping > _SWAPPING:
            yield ("swap", 0), _Reason("swap", f"the host is swapping, {swapping / (1 << 20):.0f} MiB/s", swapping)
        for gpu in record.get("gpus", []):
            if self._gpus is None or gpu["index"] in self._gpus:
                yield from self._gpu_reasons(gpu)

    def _gpu_reasons(self, gpu: GpuUse) -> Iterable[tuple[tuple[str, int], _Reason]]:
        index = gpu["index"]
        used, total = gpu.get("mem_used"), gpu.get("mem_total")
        if used is not None and total and used > _GPU_FULL * total:
            text = f"GPU {index}: memory nearly full, {used / _GIB:.1f} of {total / _GIB:.1f} GiB"
            yield ("gpu memory", index), _Reason("gpu memory", text, used)
        if gpu.get("throttle"):
            yield ("throttle", index), _Reason("throttle", _throttled(gpu), gpu.get("temp", 0))
        foreign = [pid for pid in gpu.get("pids", []) if self._ours(pid) is False]
        if foreign:
            text = f"GPU {index} is used by another program (pid {', '.join(map(str, foreign))})"
            yield ("foreign gpu", index), _Reason("foreign gpu", text, foreign[0])


def shows(records: Sequence[Telemetry], cores: int) -> list[str]:
    """Conditions in a host's last telemetry records (the newest last) that may slow its ranks down, as sentences.

    Args:
        cores: CPU cores that the host has.
    """
    if not records:
        return []
    newest = records[-1]
    found = []
    load = newest.get("load", 0.0)
    if load > _CROWDED * cores:
        found.append(f"load {load:.0f} on {cores} cores")
    steal = _mean(records, "steal")
    if steal > _STOLEN:
        found.append(f"{steal:.0f} % of its CPU time is stolen by other virtual machines")
    swapping = _mean(records, "swap_rate")
    if swapping > _SWAPPING:
        found.append(f"it swaps {swapping / (1 << 20):.0f} MiB/s")
    waiting = _mean(records, "io_wait")
    if waiting > _DISK_WAIT:
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
