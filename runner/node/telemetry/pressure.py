"""Conditions that keep a host's ranks from running: stolen CPU time, swapping, and waiting for the disk.

Sources: proc(5) (/proc/stat, /proc/vmstat), Documentation/accounting/psi.rst (/proc/pressure/io).
"""

from __future__ import annotations

import os
import re
from typing import Dict, Optional

from ...protocol.telemetry import Telemetry


class Pressure:
    """Reads counters; rates are since the previous sample, so that the first has none."""

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
