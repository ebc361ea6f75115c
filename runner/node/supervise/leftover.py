"""Resources that may stay in use after the processes of an attempt have ended: the master port, memory of GPUs."""

from __future__ import annotations

import threading
import time

from ...protocol.events import Held
from .. import ports, procs
from ..probe.gpu import has_device
from ..telemetry.gpu_nvml import LIBRARY, memory_by_process

_PATIENCE = 3.0
"""Seconds that the kernel and the driver have to release them."""
_AGAIN = 0.1
_MACHINE = "pid:[4026531836]"
"""The initial PID namespace (PROC_PID_INIT_INO of the kernel): drivers report pids of it."""


class Leftover:
    """One check, made by calling `look` until it returns a value; resources have 3 s to be released.

    Args:
        pids: Processes that have ended.
        port: The port that one of them listened on, None: the port was on another host.
        gpus: Whether to ask the driver; this is done in a thread, since it may hang.
        run: Whose they were: another run of this user may have got the port meanwhile.
    """

    def __init__(
        self, pids: set[int], port: int | None, gpus: bool | None = None, library: str = LIBRARY, run: str = ""
    ) -> None:
        self._run = run
        self._pids = pids
        self._port = port
        self._library = library
        self._deadline = time.monotonic() + _PATIENCE
        self._memory: dict[int, int] | None = None
        if has_device() and procs.pid_namespace() == _MACHINE if gpus is None else gpus:
            threading.Thread(target=self._ask, daemon=True).start()
        else:
            self._memory = {}

    def look(self) -> Held | None:
        """Return the `held` of exit.json (docs/formats.md), empty: nothing; None: ask again in a moment."""
        holder = None if self._port is None else ports.own_listener(self._port)
        if holder and self._is_of_another_run(holder):
            holder = None
        memory = self._memory
        if (holder is not None or memory or memory is None) and time.monotonic() < self._deadline:
            return None
        held: Held = {}
        if holder is not None and self._port is not None:
            held["port"] = {"port": self._port, "pid": holder or None, "command": procs.command(holder)[:500]}
        if memory:
            held["gpu_memory"] = [{"pid": pid, "bytes": size} for pid, size in sorted(memory.items())]
        return held

    def _is_of_another_run(self, pid: int) -> bool:
        if tag := procs.tag(pid):
            return not tag.startswith(f"{self._run}/")
        *_, part, folder = ["", "", *procs.command(pid).split(" ")]
        return part == "warden" and self._run not in folder

    def _ask(self) -> None:
        while time.monotonic() < self._deadline:
            try:
                found = memory_by_process(self._library)
            except OSError:
                found = {}
            # A pid that is alive has been reused.
            self._memory = {pid: found[pid] for pid in self._pids & set(found) if procs.read(pid) is None}
            if not self._memory:
                return
            time.sleep(_AGAIN)
