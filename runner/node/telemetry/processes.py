"""The processes of a host that use most of it right now, with their users, runs and GPUs."""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from ...protocol.telemetry import ProcessUse
from .. import procs

MOST = 40
"""Processes of a record, unless another number is asked for."""
_LIMIT = 100
_COMMAND = 160
_KERNEL = 0x00200000
"""PF_KTHREAD of the kernel's sched.h: one of its own threads."""

Gpus = Mapping[int, Mapping[int, Optional[int]]]
"""GPU index → pid → bytes on it, None where the driver does not report them."""


class _Seen(NamedTuple):
    """A process as it was last read. `start` and `used` in clock ticks, `at` in seconds, `name` from exec."""

    name: bytes
    start: int
    used: int
    rss: int
    at: float
    cpu: Optional[float]


class _Who(NamedTuple):
    """Properties that change with an exec at most."""

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

        First processes on GPUs and of runs, then those that use most of the CPUs, then of the memory.

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
        if len(fields) < 23 or fields[0] in (b"Z", b"X") or int(fields[6]) & _KERNEL:
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
        return (line or name[name.find(b"(") + 1 :].decode("utf-8", "replace"))[:_COMMAND]

    def _user(self, pid: int) -> str:
        try:
            uid = os.stat("%s/%d" % (self._proc, pid)).st_uid
        except OSError:
            return "?"
        if uid not in self._users:
            self._users[uid] = procs.login(uid)
        return self._users[uid]


def most_of(wanted: object) -> int:
    """How many processes the `processes` of a request asks for: true, or a number."""
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
    """A process on a GPU that is not in the process table, as from inside a container."""
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
