"""CPU time and memory that the control groups of this process allow it, version 1 and 2."""

from __future__ import annotations

import os
import re
from typing import Callable, Iterator, List, Optional, Tuple

from ..disk import read_text

_NO_LIMIT = 1 << 60  # version 1 says "no limit" with a number close to 2**63


def cpu_quota(proc: str = "/proc") -> Optional[float]:
    """Return how many cores' worth of CPU time the groups allow, None if there is no limit.

    A group's limit binds its children, so the smallest on the way to the root applies. Sources:
    Documentation/admin-guide/cgroup-v2.rst (cpu.max), Documentation/scheduler/sched-bwc.rst (cpu.cfs_quota_us).
    """
    return _smallest(proc, "cpu", _cpu_max, _cfs_quota)


def memory_limit(proc: str = "/proc") -> Optional[int]:
    """Return the bytes of memory that the groups allow, None if there is no limit."""
    limit = _smallest(proc, "memory", _memory("memory.max"), _memory("memory.limit_in_bytes"))
    return None if limit is None else int(limit)


def oom_kills(proc: str = "/proc") -> Optional[int]:
    """Return how many processes of this process's own group were killed for memory, None if that is not counted.

    Version 2 includes the groups below it (memory.events), version 1 does not (memory.oom_control).
    """
    for is_unified, folder in folders(proc, "memory"):
        for line in read_text(
            os.path.join(folder, "memory.events" if is_unified else "memory.oom_control")
        ).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return None


_Read = Callable[[str], Optional[float]]


def _smallest(proc: str, controller: str, unified: _Read, legacy: _Read) -> Optional[float]:
    limits = [(unified if is_unified else legacy)(folder) for is_unified, folder in folders(proc, controller)]
    return min((limit for limit in limits if limit is not None), default=None)


def folders(proc: str, controller: str) -> Iterator[Tuple[bool, str]]:
    """Yield (is version 2, folder) of every group that binds this process, from its own up to the mounted root."""
    mounts = _mounts(proc, controller)
    for line in read_text(os.path.join(proc, "self", "cgroup")).splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        is_unified = number == "0" and not names
        if not is_unified and controller not in names.split(","):
            continue
        for unified_mount, root, point in mounts:
            if unified_mount == is_unified:
                # In a container the mount shows only a part of the tree, or (namespaces) paths relative to it.
                inner = os.path.relpath(path, root) if path.startswith(root) else "."
                folder = os.path.normpath(os.path.join(point, inner))
                while folder.startswith(point):
                    yield is_unified, folder
                    folder = os.path.dirname(folder)
                break


def _mounts(proc: str, controller: str) -> List[Tuple[bool, str, str]]:
    found = []
    for line in read_text(os.path.join(proc, "self", "mountinfo")).splitlines():
        fields = line.split(" ")
        if " - " not in line or len(fields) < 10:
            continue
        dash = fields.index("-")
        kind, options = fields[dash + 1], fields[-1].split(",")
        if kind == "cgroup2" or (kind == "cgroup" and controller in options):
            found.append((kind == "cgroup2", fields[3], unescape(fields[4])))
    return found


def unescape(path: str) -> str:
    """Decode a path of mountinfo or mounts, in which spaces are written as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _cpu_max(folder: str) -> Optional[float]:
    words = _text(folder, "cpu.max").split()
    return _ratio(*words) if len(words) == 2 else None


def _cfs_quota(folder: str) -> Optional[float]:
    return _ratio(_text(folder, "cpu.cfs_quota_us"), _text(folder, "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> Optional[float]:
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max": no limit
        return None
    return share if share > 0 else None


def _memory(name: str) -> _Read:
    def read(folder: str) -> Optional[float]:
        text = _text(folder, name)
        return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None

    return read


def _text(folder: str, name: str) -> str:
    return read_text(os.path.join(folder, name)).strip()
