"""GPU figures over time: by NVML, or by one long-lived nvidia-smi; no process per sample."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import Callable, Dict, List, Literal, Optional, Sequence, Tuple

from ...protocol.telemetry import GpuCard, GpuUse
from ..probe.gpu import find_smi, megabytes, number
from .gpu_nvml import Nvml

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
            # If this process is killed, the child ends by itself: its next write finds the pipe closed.
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
