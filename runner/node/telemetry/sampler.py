"""The load of a host, once a second: one record of telemetry.jsonl (docs/formats.md).

GPUs are read by NVML or by one long-lived nvidia-smi; no process per sample.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from typing import Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple

from ...protocol.telemetry import GpuCard, GpuUse, RankUse, Telemetry
from ..disk import room
from ..probe.gpu import find_smi, has_device, megabytes, number
from ..system import Process, system
from .gpu_nvml import Nvml
from .processes import Processes

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
        """Bytes of each process (pid) on each GPU."""
        self._closed = threading.Event()
        self._child: Optional[subprocess.Popen[str]] = None
        self._seen: Dict[int, GpuUse] = {}
        self._seen_at = 0.0
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        self._thread.start()

    def latest(self) -> Optional[List[GpuUse]]:
        """Return the `gpus` of a telemetry record, None when nothing came for 5 s."""
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

    def _note(self, gpus: List[GpuUse]) -> None:
        # A new dict each time: `latest` reads it from another thread.
        self._seen = {**self._seen, **{gpu["index"]: gpu for gpu in gpus}}
        self._seen_at = time.monotonic()


def parse(line: str) -> Optional[GpuUse]:
    """Read one line of nvidia-smi; None for a line of no GPU. Values that the card does not report are absent."""
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
    """Takes samples; rates are since the previous sample, so that the first has none.

    Not thread-safe. A sample blocks as long as the file system of `run_dir` does, on a dead NFS server for ever: use a
    separate thread.

    Args:
        run_dir: The folder whose file system `disk_free` is of.
        gpus: Whether to read NVIDIA GPUs; without such a device this costs nothing.
        processes: How many of the host's processes to include; above 0 also the constants of GPUs and CPUs.
    """

    def __init__(self, run_dir: str, gpus: bool = True, processes: int = 0) -> None:
        self._run_dir = os.path.expanduser(run_dir)
        self._system = system()
        self._pressure = Pressure()
        self._gpus = GpuWatch(details=processes > 0) if gpus and has_device() else None
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
        self._add_cpu(record)
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
            self._add_processes(record, self._processes, now)
        return record

    def close(self) -> None:
        """Stop watching the GPUs."""
        if self._gpus is not None:
            self._gpus.close()

    def _add_processes(self, record: Telemetry, processes: Processes, now: float) -> None:
        record["cpus"] = os.cpu_count()
        cards = self._gpus.cards if self._gpus is not None else {}
        if "gpus" in record:
            record["gpus"] = [{**gpu, **cards.get(gpu["index"], {})} for gpu in record["gpus"]]
        holders = self._gpus.holders if self._gpus is not None else {}
        record["processes"], record["process_count"] = processes.sample(now, holders, self._most)

    def _add_cpu(self, record: Telemetry) -> None:
        before, self._cpu = self._cpu, self._system.cpu()
        if before is not None and self._cpu is not None and self._cpu[1] > before[1]:
            share = (self._cpu[0] - before[0]) / (self._cpu[1] - before[1])
            record["cpu"] = round(100 * min(1.0, max(0.0, share)), 1)
        try:
            record["load"] = round(os.getloadavg()[0], 2)
        except OSError:
            pass

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
            # The same process: a pid may be reused. Boot time, and with it the start, moves a little with the clock.
            if seconds and old is not None and old_pid == pid and abs(old.started - process.started) < 2:
                use["cpu"] = round(100 * (process.cpu - old.cpu) / seconds, 1)
        return found


class Pressure:
    """Conditions that keep ranks from running: stolen CPU time, swapping, waiting for the disk.

    Rates are since the previous sample, so the first has none. Sources: proc(5) (/proc/stat, /proc/vmstat),
    Documentation/accounting/psi.rst (/proc/pressure/io).
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._ticks: Optional[Dict[str, int]] = None
        self._swapped: Optional[int] = None

    def sample(self, record: Telemetry, seconds: Optional[float]) -> None:
        """Add to a telemetry record: `steal` and `io_wait` in percent, `swap_rate` in bytes/s.

        Args:
            seconds: Since the previous sample, None for the first.
        """
        ticks, self._ticks = self._ticks, self._cpu()
        if ticks and self._ticks and self._ticks["total"] > ticks["total"]:
            share = (self._ticks["steal"] - ticks["steal"]) / (self._ticks["total"] - ticks["total"])
            record["steal"] = round(100 * min(1.0, max(0.0, share)), 1)
        swapped, self._swapped = self._swapped, self._pages()
        if seconds and swapped is not None and self._swapped is not None:
            record["swap_rate"] = round(max(0, self._swapped - swapped) * os.sysconf("SC_PAGE_SIZE") / seconds)
        waiting = re.search(r"^some avg10=([\d.]+)", self._read("pressure/io"), re.MULTILINE)
        if waiting:
            record["io_wait"] = float(waiting.group(1))

    def _cpu(self) -> Optional[Dict[str, int]]:
        fields = self._read("stat").split("\n", 1)[0].split()[1:9]
        if len(fields) < 8 or not all(field.isdigit() for field in fields):
            return None
        return {"steal": int(fields[7]), "total": sum(map(int, fields))}

    def _pages(self) -> Optional[int]:
        found = re.findall(r"^pswp(?:in|out) (\d+)$", self._read("vmstat"), re.MULTILINE)
        return sum(map(int, found)) if found else None

    def _read(self, name: str) -> str:
        try:
            with open(os.path.join(self._proc, name), encoding="ascii", errors="replace") as file:
                return file.read()
        except OSError:
            return ""
