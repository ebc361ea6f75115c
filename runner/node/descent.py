"""Untagged descendants of a run's ranks, noted while their descent is visible.

A daemon that has cleared its environment is the supervisor's child for as long as that lives. Once supervisor and
warden have been killed, nothing about it says where it came from.
"""

from __future__ import annotations

import os
from typing import List, Set

from . import procs
from .journal import read_json, write_json

NAME = "untagged.json"
_MOST = 1000


class Descent:
    """Keeps the note of one run's folder, from the supervisor's process."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, NAME)
        self._noted: List[List[int]] = []

    def look(self) -> None:
        """Note the present ones. Never raises OSError: a failed write is tried again at the next call."""
        table = procs.table()
        us = table.get(os.getpid())
        if us is None:
            return
        # Helpers of the supervisor stay in its session; launchers get one of their own.
        below = [table[pid] for pid in procs.descendants(table, us.pid)]
        found = [proc for proc in below if proc.session != us.session and not proc.dead and not procs.tag(proc.pid)]
        now = sorted([proc.pid, proc.start] for proc in found)[:_MOST]
        if now == self._noted:
            return
        try:
            ours = {"boot_id": procs.boot_id(), "pid_namespace": procs.pid_namespace()}
            write_json(self._path, {**ours, "processes": now})
            self._noted = now
        except OSError:
            pass


def noted(folder: str) -> Set[int]:
    """Return the noted processes that still live, in this boot, as this user's."""
    data = read_json(os.path.join(folder, NAME))
    processes = data.get("processes") if isinstance(data, dict) else None
    here = (procs.boot_id(), procs.pid_namespace())
    if not isinstance(processes, list) or (data.get("boot_id"), data.get("pid_namespace")) != here:
        return set()
    pairs = [one for one in processes[:_MOST] if isinstance(one, list) and len(one) == 2]
    return {pid for pid, start in pairs if isinstance(pid, int) and pid > 1 and _is_it(pid, start)}


def _is_it(pid: int, start: object) -> bool:
    proc = procs.read(pid)
    return proc is not None and not proc.dead and proc.start == start and procs.owner(pid) == os.getuid()
