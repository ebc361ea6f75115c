"""The load of a host, once a second: one record of telemetry.jsonl (docs/formats.md), with its busiest processes.

GPUs are read through NVML, by one long-lived nvidia-smi or from the kernel's files of amdgpu; no process is started
per sample.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from typing import Callable, Dict, List, Literal, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ...protocol.telemetry import GpuCard, GpuUse, ProcessUse, RankUse, Telemetry
from .. import folders, procs
from ..disk import read_text, room
from ..probe import amd
from ..probe.gpu import find_smi, has_device, megabytes, number
from ..system import Process, system
from .gpu_nvml import Nvml

MOST = 40
"""Processes in a record, unless another number is requested."""
_LIMIT = 100

Gpus = Mapping[int, Mapping[int, Optional[int]]]
"""GPU index → pid → bytes on it, None if the driver does not report them."""


class _Seen(NamedTuple):
    """A process as last read. `start` and `used` in clock ticks, `at` in seconds, `name` from exec."""

    name: bytes
    start: int
    used: int
    rss: int
    at: float
    cpu: Optional[float]


class _Who(NamedTuple):
    """Properties of a process that change only with an exec."""

    name: bytes
    start: int
    tag: str
    user: str
    command: Optional[str]
    """None until the process is in a result."""


class Processes:
    """Watches the process table; a sample of 500 processes costs a few milliseconds.

    Environments are read once per process, command lines only of processes in the result. Not thread-safe.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._tick = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._seen: Dict[int, _Seen] = {}
        self._who: Dict[int, _Who] = {}
        self._users: Dict[int, str] = {}

    def sample(self, now: float, gpus: Gpus, most: int = MOST) -> Tuple[List[ProcessUse], int]:
        """Return the `processes` of a telemetry record, and how many there are in all.

        Processes on GPUs and of runs come first, then those that use the most CPU time, then the most memory.

        Args:
            now: Monotonic seconds.
            gpus: The processes on each GPU.
            most: How many to return.
        """
        on_gpu = {pid for holders in gpus.values() for pid in holders}
        before, self._seen = self._seen, {}
        who, self._who = self._who, {}
        for pid in self._pids():
            seen = self._look(pid, before.get(pid), now)
            if seen is not None:
                self._seen[pid] = seen
                known = who.get(pid)
                if known is None:
                    # When first read, a process may not have called exec yet: it is identified again.
                    self._who[pid] = self._meet(pid, seen)._replace(name=b"")
                else:
                    self._who[pid] = known if known[:2] == seen[:2] else self._meet(pid, seen)

        def weight(pid: int) -> Tuple[bool, bool, float, int]:
            seen = self._seen[pid]
            return pid in on_gpu, bool(self._who[pid].tag), seen.cpu or 0.0, seen.rss

        rows = [_foreign(pid, gpus) for pid in sorted(on_gpu - set(self._seen))][:most]
        chosen = sorted(self._seen, key=weight, reverse=True)[: most - len(rows)]
        return rows + [self._row(pid, gpus) for pid in chosen], len(self._seen)

    def _pids(self) -> Set[int]:
        try:
            return {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        except OSError:
            return set()

    def _look(self, pid: int, before: Optional[_Seen], now: float) -> Optional[_Seen]:
        data = _read("%s/%d/stat" % (self._proc, pid))
        end = data.rfind(b")")
        fields = data[end + 1 :].split(None, 23)
        # PF_KTHREAD of the kernel's sched.h: one of its own threads
        if len(fields) < 23 or fields[0] in (b"Z", b"X") or int(fields[6]) & 0x00200000:
            return None
        start, used = int(fields[19]), int(fields[11]) + int(fields[12])
        cpu = None
        if before is not None and before.start == start:
            cpu = round(100 * (used - before.used) / self._tick / max(0.01, now - before.at), 1)
        return _Seen(data[:end], start, used, int(fields[21]) * self._page, now, cpu)

    def _meet(self, pid: int, seen: _Seen) -> _Who:
        return _Who(seen.name, seen.start, procs.tag(pid), self._user(pid), None)

    def _row(self, pid: int, gpus: Gpus) -> ProcessUse:
        seen, who = self._seen[pid], self._who[pid]
        if who.command is None:
            who = self._who[pid] = who._replace(command=self._command(pid, seen.name))
        row = ProcessUse(pid=pid, user=who.user, command=who.command or "", rss=seen.rss)
        if seen.cpu is not None:
            row["cpu"] = seen.cpu
        if who.tag:
            row["tag"] = who.tag
        _add_gpus(row, gpus)
        return row

    def _command(self, pid: int, name: bytes) -> str:
        line = _read("%s/%d/cmdline" % (self._proc, pid), 4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        return (line or name[name.find(b"(") + 1 :].decode("utf-8", "replace"))[:160]

    def _user(self, pid: int) -> str:
        try:
            uid = os.stat("%s/%d" % (self._proc, pid)).st_uid
        except OSError:
            return "?"
        if uid not in self._users:
            self._users[uid] = folders.user_name(uid)
        return self._users[uid]


def most_of(wanted: object) -> int:
    """The number of processes that a request's `processes` asks for: true, or a number."""
    if isinstance(wanted, bool) or not isinstance(wanted, int):
        return MOST if wanted is True else 0
    return max(0, min(_LIMIT, wanted))


def _add_gpus(row: ProcessUse, gpus: Gpus) -> None:
    pid = row["pid"]
    indices = [index for index, holders in sorted(gpus.items()) if pid in holders]
    known = [memory for index in indices for memory in (gpus[index][pid],) if memory is not None]
    if indices:
        row["gpus"] = indices
    if known:
        row["gpu_memory"] = sum(known)


def _foreign(pid: int, gpus: Gpus) -> ProcessUse:
    """A process on a GPU that is not in the process table, as seen from inside a container."""
    row = ProcessUse(pid=pid, user="?", command="")
    _add_gpus(row, gpus)
    return row


def _read(path: str, size: int = 1024) -> bytes:
    # Half the cost of a file object, which matters for hundreds of files a second.
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(handle, size)
    except OSError:
        return b""
    finally:
        os.close(handle)


_STALE = 5.0
_FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
_Figure = Literal["use", "mem_used", "mem_total", "power", "temp"]
_READERS: Sequence[Tuple[_Figure, Callable[[str], Optional[float]]]] = (
    ("use", number), ("mem_used", megabytes), ("mem_total", megabytes), ("power", number), ("temp", number),
)  # fmt: skip


class GpuWatch:
    """Reads all GPUs once a second in its own thread, so that a hung driver blocks nothing else.

    Args:
        library: NVML's file name.
        interval: Seconds between two readings.
        details: Also read the constants of each card, and the processes on it (NVML only).
    """

    def __init__(self, library: str = "libnvidia-ml.so.1", interval: float = 1.0, details: bool = False) -> None:
        self._library = library
        self._interval = interval
        self._details = details
        self.cards: Dict[int, GpuCard] = {}
        """`name` and `power_limit` of each GPU."""
        self.holders: Dict[int, Dict[int, Optional[int]]] = {}
        """Bytes that each process (pid) uses on each GPU."""
        self._closed = threading.Event()
        self._child: Optional[subprocess.Popen[str]] = None
        self._seen: Dict[int, GpuUse] = {}
        self._seen_at = 0.0
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        self._thread.start()

    def latest(self) -> Optional[List[GpuUse]]:
        """Return the `gpus` of a telemetry record, None if none arrived for 5 s."""
        if time.monotonic() - self._seen_at > _STALE:
            return None
        return list(self._seen.values())

    def close(self) -> None:
        """End the thread and the child, without waiting for a driver that does not answer."""
        self._closed.set()
        if self._child is not None:
            self._child.kill()
        self._thread.join(1.0)

    def _run(self) -> None:
        try:
            nvml = Nvml(self._library)
        except OSError:
            self._watch_smi()
            return
        if self._details:
            self.cards = nvml.cards()
        while not self._closed.is_set():
            if self._details:
                self.holders = nvml.memory_of()
            self._note(nvml.read())
            self._closed.wait(self._interval)
        nvml.close()

    def _watch_smi(self) -> None:
        program = find_smi()
        if program is None:
            self._watch_amd()
            return
        seconds = str(max(1, round(self._interval)))
        command = [program, "--query-gpu=" + _FIELDS, "--format=csv,noheader,nounits", "-l", seconds]
        try:
            # If this process is killed, the child ends as well: its next write finds the pipe closed.
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError:
            return
        if self._closed.is_set():  # closed while it was being started
            self._child.kill()
        assert self._child.stdout is not None
        with self._child.stdout as lines:
            for line in lines:
                if self._closed.is_set():
                    break
                gpu = parse(line)
                if gpu is not None:
                    self._note([gpu])
        self._child.kill()
        self._child.wait()

    def _watch_amd(self) -> None:
        while amd.folders() and not self._closed.is_set():
            self._note(amd.load())
            self._closed.wait(self._interval)

    def _note(self, gpus: List[GpuUse]) -> None:
        # A new dict each time: `latest` reads it from another thread.
        self._seen = {**self._seen, **{gpu["index"]: gpu for gpu in gpus}}
        self._seen_at = time.monotonic()


def parse(line: str) -> Optional[GpuUse]:
    """Parse one line of nvidia-smi; None if it is not about a GPU. Values that the card does not report are absent."""
    index, *fields = (field.strip() for field in line.split(","))
    if not index.isdigit() or len(fields) != len(_READERS):
        return None
    gpu = GpuUse(index=int(index))
    for position, (name, reader) in enumerate(_READERS):
        value = reader(fields[position])
        if value is not None:
            gpu[name] = value
    return gpu


class Sampler:
    """Takes samples; rates are relative to the previous sample, so the first has none.

    Not thread-safe. A sample blocks as long as the file system of `run_dir` does, on a dead NFS server forever: use a
    separate thread.

    Args:
        run_dir: The folder whose file system `disk_free` describes.
        gpus: Whether to read GPUs; without one this costs nothing.
        processes: How many of the host's processes to include; if above 0, also the constants of GPUs and CPUs.
    """

    def __init__(self, run_dir: str, gpus: bool = True, processes: int = 0) -> None:
        self._run_dir = os.path.expanduser(run_dir)
        self._system = system()
        self._pressure = Pressure()
        self._gpus = GpuWatch(details=processes > 0) if gpus and (has_device() or amd.folders()) else None
        self._most = processes
        self._processes = Processes() if processes > 0 else None
        self._before: Optional[float] = None
        self._cpu: Optional[Tuple[float, float]] = None
        self._net: Optional[Tuple[int, int]] = None
        self._ranks: Dict[int, Tuple[int, Process]] = {}

    def sample(self, ranks: Mapping[int, int]) -> Telemetry:
        """Return a record; what cannot be read is absent.

        Args:
            ranks: The pid of each global rank on this host.
        """
        now = time.monotonic()
        seconds = None if self._before is None else now - self._before
        self._before = now
        memory = self._system.memory()
        record = Telemetry(t=round(time.time(), 3))
        before, self._cpu = self._cpu, self._system.cpu()
        if before is not None and self._cpu is not None and self._cpu[1] > before[1]:
            share = (self._cpu[0] - before[0]) / (self._cpu[1] - before[1])
            record["cpu"] = round(100 * min(1.0, max(0.0, share)), 1)
        try:
            record["load"] = round(os.getloadavg()[0], 2)
        except OSError:
            pass
        record["mem_used"], record["mem_total"] = memory.total - memory.available, memory.total
        if memory.swap_used is not None:
            record["swap_used"] = memory.swap_used
        self._add_network(record, seconds)
        self._pressure.sample(record, seconds)
        try:
            left = room(self._run_dir)
            record["disk_free"], record["disk_total"] = left.free, left.total
            if left.inodes_total:
                record["inodes_free"], record["inodes_total"] = left.inodes_free, left.inodes_total
        except OSError:
            pass
        record["ranks"] = self._sample_ranks(ranks, seconds)
        gpus = [] if self._gpus is None else self._gpus.latest()
        if gpus is not None:
            record["gpus"] = gpus
        if self._processes is not None:
            record["cpus"] = os.cpu_count()
            cards = self._gpus.cards if self._gpus is not None else {}
            if "gpus" in record:
                record["gpus"] = [{**gpu, **cards.get(gpu["index"], {})} for gpu in record["gpus"]]
            holders = self._gpus.holders if self._gpus is not None else {}
            record["processes"], record["process_count"] = self._processes.sample(now, holders, self._most)
        return record

    def close(self) -> None:
        if self._gpus is not None:
            self._gpus.close()

    def _add_network(self, record: Telemetry, seconds: Optional[float]) -> None:
        before, self._net = self._net, self._system.network()
        if seconds and before is not None and self._net is not None:
            received, sent = (now - then for now, then in zip(self._net, before))  # noqa: B905
            # An interface that was created again counts from zero.
            if received >= 0:
                record["net_rx"] = round(received / seconds)
            if sent >= 0:
                record["net_tx"] = round(sent / seconds)

    def _sample_ranks(self, ranks: Mapping[int, int], seconds: Optional[float]) -> Dict[str, RankUse]:
        before, self._ranks = self._ranks, {}
        found: Dict[str, RankUse] = {}
        for rank, pid in ranks.items():
            process = self._system.process(pid)
            if process is None:
                continue
            self._ranks[rank] = (pid, process)
            use = found[str(rank)] = RankUse(rss=process.rss)
            old_pid, old = before.get(rank, (None, None))
            # The same process: a pid may be reused. Boot time, and with it the start, drifts a little with the clock.
            if seconds and old is not None and old_pid == pid and abs(old.started - process.started) < 2:
                use["cpu"] = round(100 * (process.cpu - old.cpu) / seconds, 1)
        return found


class Pressure:
    """Conditions that keep ranks from running: stolen CPU time, swapping, waiting for the disk.

    Rates are relative to the previous sample, so the first has none. Sources: proc(5) (/proc/stat, /proc/vmstat),
    Documentation/accounting/psi.rst (/proc/pressure/io).
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._ticks: Optional[Dict[str, int]] = None
        self._swapped: Optional[int] = None

    def sample(self, record: Telemetry, seconds: Optional[float]) -> None:
        """Add to a telemetry record: `steal` and `io_wait` in percent, `swap_rate` in bytes/s.

        Args:
            seconds: Time since the previous sample, None for the first.
        """
        ticks, self._ticks = self._ticks, self._cpu()
        if ticks and self._ticks and self._ticks["total"] > ticks["total"]:
            share = (self._ticks["steal"] - ticks["steal"]) / (self._ticks["total"] - ticks["total"])
            record["steal"] = round(100 * min(1.0, max(0.0, share)), 1)
        found = re.findall(r"^pswp(?:in|out) (\d+)$", read_text(os.path.join(self._proc, "vmstat")), re.MULTILINE)
        swapped, self._swapped = self._swapped, (sum(map(int, found)) if found else None)
        if seconds and swapped is not None and self._swapped is not None:
            record["swap_rate"] = round(max(0, self._swapped - swapped) * os.sysconf("SC_PAGE_SIZE") / seconds)
        waiting = re.search(r"^some avg10=([\d.]+)", read_text(os.path.join(self._proc, "pressure/io")), re.MULTILINE)
        if waiting:
            record["io_wait"] = float(waiting.group(1))

    def _cpu(self) -> Optional[Dict[str, int]]:
        fields = read_text(os.path.join(self._proc, "stat")).split("\n", 1)[0].split()[1:9]
        if len(fields) < 8 or not all(field.isdigit() for field in fields):
            return None
        return {"steal": int(fields[7]), "total": sum(map(int, fields))}
