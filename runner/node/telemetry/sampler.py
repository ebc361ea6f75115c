"""The load of a host, once a second: one record of telemetry.jsonl (docs/formats.md)."""

from __future__ import annotations

import os
import time
from typing import Dict, Mapping, Optional, Tuple

from ...protocol.telemetry import RankUse, Telemetry
from ..disk import room
from ..probe.gpu import has_device
from ..system import Process, system
from .gpu_watch import GpuWatch
from .pressure import Pressure
from .processes import Processes


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
