"""Counters of the machine and its processes, from psutil if the host's Python has it, otherwise from /proc.

The only file of the node program that may import psutil. Both sources give the same figures in the same units: seconds,
bytes, counters since boot. None: it cannot be read.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable, NamedTuple, Optional, Set, Tuple, Union


class Process(NamedTuple):
    """A living process: CPU seconds used so far, resident bytes, and its start time (to detect a reused pid)."""

    cpu: float
    rss: int
    started: float


class MachineMemory(NamedTuple):
    """Bytes of the whole machine, regardless of control groups."""

    total: int
    available: int
    swap_used: Optional[int]


def system() -> System:
    """Return a reader of counters that works here.

    /proc, where there is one, costs a third of psutil's CPU time for the same figures, and needs no import.
    """
    if os.path.exists("/proc/stat"):
        return ByProc()
    try:
        return ByPsutil()
    except ImportError:
        return ByProc()


class ByProc:
    """Counters from /proc, for rates between two readings; on a machine without it, only total memory."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._tick = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._external: Optional[Set[str]] = None

    def cpu(self) -> Optional[Tuple[float, float]]:
        """Seconds that all CPUs together were busy, and seconds that have passed on them, from /proc/stat.

        Guest time is already part of user time (proc(5)).
        """
        fields = self._read("stat").split(b"\n", 1)[0].split()[1:9]
        if len(fields) < 8:
            return None
        ticks = [int(field) for field in fields]
        total = sum(ticks)
        return (total - ticks[3] - ticks[4]) / self._tick, total / self._tick

    def memory(self) -> MachineMemory:
        """Memory and swap, from /proc/meminfo; kernels before 3.14 have no MemAvailable."""
        size = {}
        for line in self._read("meminfo").splitlines():
            name, _, rest = line.partition(b":")
            if rest:
                size[name] = int(rest.split()[0]) * 1024
        total = size.get(b"MemTotal") or self._page * os.sysconf("SC_PHYS_PAGES")
        parts = [size.get(name, 0) for name in (b"MemFree", b"Buffers", b"Cached")]
        swap = size[b"SwapTotal"] - size.get(b"SwapFree", 0) if b"SwapTotal" in size else None
        return MachineMemory(total, size.get(b"MemAvailable") or sum(parts) or total, swap)

    def network(self) -> Optional[Tuple[int, int]]:
        """Bytes received and sent by interfaces that lead off the machine, from /proc/net/dev of our namespace."""
        counters = {}
        for line in self._read("net/dev").decode("utf-8", "replace").splitlines()[2:]:
            name, _, rest = line.rpartition(":")
            fields = rest.split()
            if len(fields) > 8:
                counters[name.strip()] = (int(fields[0]), int(fields[8]))
        if self._external is None:
            self._external = _external(counters)
        return _sum(counters, self._external)

    def process(self, pid: int) -> Optional[Process]:
        """The resources used by a process; None if it has ended (even as a zombie) or may not be read.

        Reads /proc/PID/stat, whose name field may contain spaces and brackets, and statm: the rss in stat is inexact.
        """
        data = self._read(f"{pid}/stat")
        fields = data[data.rfind(b")") + 1 :].split()
        memory = self._read(f"{pid}/statm").split()
        if len(fields) < 20 or len(memory) < 2 or fields[0] in (b"Z", b"X"):
            return None
        cpu = (int(fields[11]) + int(fields[12])) / self._tick
        return Process(cpu, int(memory[1]) * self._page, int(fields[19]) / self._tick)

    def _read(self, name: str) -> bytes:
        try:
            with open(os.path.join(self._proc, name), "rb", buffering=0) as file:
                return file.readall() or b""
        except OSError:
            return b""


class ByPsutil:
    """Counters from psutil, which also supports macOS. Raises ImportError if it is missing."""

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        self._external: Optional[Set[str]] = None

    def cpu(self) -> Optional[Tuple[float, float]]:
        """Sum psutil's times without guest time, which user time contains."""
        times = self._psutil.cpu_times()
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return total - times.idle - getattr(times, "iowait", 0.0), total

    def memory(self) -> MachineMemory:
        """Read memory and, where the system has any, swap."""
        memory = self._psutil.virtual_memory()
        try:
            swap: Optional[int] = self._psutil.swap_memory().used
        except (OSError, RuntimeError):
            swap = None
        return MachineMemory(memory.total, memory.available, swap)

    def network(self) -> Optional[Tuple[int, int]]:
        """Sum the counters of each interface."""
        counters = {
            name: (nic.bytes_recv, nic.bytes_sent)
            for name, nic in self._psutil.net_io_counters(pernic=True, nowrap=False).items()
        }
        if self._external is None:
            self._external = _external(counters)
        return _sum(counters, self._external)

    def process(self, pid: int) -> Optional[Process]:
        try:
            process = self._psutil.Process(pid)
            with process.oneshot():
                if process.status() == self._psutil.STATUS_ZOMBIE:
                    return None
                times = process.cpu_times()
                return Process(times.user + times.system, process.memory_info().rss, process.create_time())
        except self._psutil.Error:
            return None


System = Union[ByProc, ByPsutil]


def _external(names: Iterable[str]) -> Set[str]:
    """Choose the interfaces to count: those backed by hardware, or (in a namespace) all but loopback.

    A bridge or a tunnel would count the same bytes a second time.
    """
    found = {name for name in names if not name.startswith("lo")}
    return {name for name in found if os.path.exists(f"/sys/class/net/{name}/device")} or found


def _sum(counters: Dict[str, Tuple[int, int]], names: Set[str]) -> Optional[Tuple[int, int]]:
    counted = [counters[name] for name in names if name in counters]
    return (sum(pair[0] for pair in counted), sum(pair[1] for pair in counted)) if counted else None
