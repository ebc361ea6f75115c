"""Processors: how many there are, and how many of them this login can actually use."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Dict, FrozenSet, List, Mapping, Optional, Set

from ..child import ask
from ..disk import read_text
from .cgroup import cpu_quota

if TYPE_CHECKING:
    from ...protocol.facts import Cpu


def facts(proc: str = "/proc", sys: str = "/sys") -> Cpu:
    """Return the probe's `cpu`: model, cores, affinity, quota, load."""
    text = read_text(os.path.join(proc, "cpuinfo"))
    cores = core_of_cpu(text, sys)
    logical = len(cores) or os.cpu_count() or 1
    affinity = _affinity() or set(cores) or set(range(logical))
    physical = len(set(cores.values())) or _mac_cores() or logical
    quota = cpu_quota(proc)
    return {
        "model": _model(text),
        "physical": physical,
        "logical": logical,
        "affinity": len(affinity),
        "quota": quota,
        "available": available(cores, affinity, physical, quota),
        "load": _load(),
    }


def available(cores: Mapping[int, FrozenSet[int]], affinity: Set[int], physical: int, quota: Optional[float]) -> int:
    """Return how many physical cores this login can keep busy, at least 1.

    Two hardware threads of one core count once, and a CPU whose core is unknown counts as one; a quota is rounded
    down, since a process that gets half a core slows down all others.
    """
    reachable = len({cores.get(cpu, frozenset([cpu])) for cpu in affinity})
    reachable = min(reachable, physical)
    return max(1, reachable if quota is None else min(reachable, int(quota)))


def core_of_cpu(cpuinfo: str, sys: str = "/sys") -> Dict[int, FrozenSet[int]]:
    """Map every online logical CPU to its core, named by the set of CPUs that share it.

    Read from /sys if available; otherwise from /proc/cpuinfo, where virtual machines and ARM may lack the core ids.
    """
    base = os.path.join(sys, "devices/system/cpu")
    found: Dict[int, FrozenSet[int]] = {}
    for cpu in sorted(cpu_list(read_text(os.path.join(base, "online")))):
        topology = os.path.join(base, f"cpu{cpu}/topology")
        text = read_text(os.path.join(topology, "core_cpus_list")) or read_text(
            os.path.join(topology, "thread_siblings_list")
        )
        found[cpu] = frozenset(cpu_list(text)) or frozenset([cpu])
    return found or _from_cpuinfo(cpuinfo)


def cpu_list(text: str) -> Set[int]:
    """Parse the kernel's list notation: `0-3,8` is {0, 1, 2, 3, 8}."""
    found: Set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last if last.isdigit() else first) + 1))
    return found


def _from_cpuinfo(text: str) -> Dict[int, FrozenSet[int]]:
    by_core: Dict[object, List[int]] = {}
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", block, re.MULTILINE))
        if fields.get("processor", "").isdigit():
            cpu = int(fields["processor"])
            core = (fields.get("physical id"), fields["core id"]) if "core id" in fields else cpu
            by_core.setdefault(core, []).append(cpu)
    return {cpu: frozenset(group) for group in by_core.values() for cpu in group}


def _model(cpuinfo: str) -> str:
    for name in ("model name", "Model", "Hardware", "cpu model", "cpu"):
        match = re.search(rf"^{name}\s*:\s*(\S.*)$", cpuinfo, re.MULTILINE)
        if match:
            return match.group(1).strip()
    if model := _sysctl("machdep.cpu.brand_string"):
        return model
    import platform

    return platform.processor() or platform.machine()


def _mac_cores() -> int:
    text = _sysctl("hw.physicalcpu")
    return int(text) if text.isdigit() else 0


def _sysctl(name: str) -> str:
    if os.uname().sysname != "Darwin":
        return ""
    try:
        return ask(["/usr/sbin/sysctl", "-n", name], 2).out.strip()
    except OSError:
        return ""


def _affinity() -> Set[int]:
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):  # not available on macOS
        return set()


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0
