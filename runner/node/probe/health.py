"""Conditions of this host that a run needs beyond the probe: limits, disk space, clocks, the login's variables.

The health of NVIDIA GPUs comes from `nvidia-smi -q -x`, which needs no root and works with every driver generation.
"""

from __future__ import annotations

import glob
import os
import re
import resource
import sys
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence
from xml.etree import ElementTree

from ..child import ask, together
from ..disk import read_text
from . import cgroup
from .gpu import complain, find_smi

if TYPE_CHECKING:
    from ...protocol.checks import FabricPort, FileSystem, GpuHealth, Inspected, Interface

_VARIABLES = re.compile(r"(NCCL|GLOO|TORCH|OMP|MKL|CUDA|UCX|TP|FI|OMPI_MCA)_\w+|MASTER_(ADDR|PORT)|LD_PRELOAD")
_PATIENCE = 5.0
"""Seconds for one file system: a dead NFS server never answers."""


def inspect(folders: Sequence[str], gpus: bool) -> Inspected:
    """Measure this host. Nothing here needs root, starts a process other than nvidia-smi, or takes longer than 15 s."""
    problems: List[str] = []
    paths = ["/dev/shm", *(os.path.abspath(os.path.expanduser(folder)) for folder in folders)]
    # Where /dev/shm is missing, the file system that it would be on says nothing.
    there = [path for path in paths if path != paths[0] or sys.platform != "linux" or os.path.isdir(path)]
    tasks = {path: (lambda path=path: _room(path)) for path in there}
    rooms: List[FileSystem] = []
    shm: Optional[FileSystem] = None
    for path, found in together(tasks, _PATIENCE).items():
        if isinstance(found, Exception):
            late = isinstance(found, TimeoutError)
            problems.append(f"{path}: {f'no answer from its file system in {_PATIENCE:g} s' if late else found}")
        elif path == paths[0]:
            shm = found
        else:
            rooms.append(found)
    nofile, nofile_most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "shm": shm,
        "rooms": rooms,
        "nofile": _limit(nofile),
        "nofile_most": _limit(nofile_most),
        "memlock": _limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        "nproc": _limit(resource.getrlimit(resource.RLIMIT_NPROC)[0]) if os.geteuid() else None,
        "processes": _threads(),
        "tasks_left": _tasks_left(),
        "governor": read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip(),
        "throttled": _throttled(),
        "interfaces": _interfaces(),
        "fabric": _fabric(),
        "variables": {name: value[:200] for name, value in os.environ.items() if _VARIABLES.fullmatch(name)},
        "gpus": health(problems) if gpus else [],
        "problems": problems,
    }


def _limit(value: int) -> Optional[int]:
    return None if value == resource.RLIM_INFINITY else value


def _room(path: str) -> FileSystem:
    there = path
    while not os.path.exists(there):
        there = os.path.dirname(there)
    found = os.statvfs(there)
    return {
        "path": path,
        "kind": _kind(there),
        "free": found.f_bavail * found.f_frsize,
        "total": found.f_blocks * found.f_frsize,
        "inodes_free": found.f_favail if found.f_files else None,
    }


def _kind(path: str) -> str:
    real, best, kind = os.path.realpath(path), "", ""
    for line in read_text("/proc/self/mounts").splitlines():
        words = line.split(" ")
        if len(words) > 2:
            place = cgroup.unescape(words[1])
            inside = real == place or real.startswith(place.rstrip("/") + "/")
            if inside and len(place) >= len(best):
                best, kind = place, words[2]
    return kind


def _threads() -> int:
    count, uid = 0, os.getuid()
    for folder in glob.iglob("/proc/[0-9]*"):
        try:
            if os.stat(folder).st_uid == uid:
                count += len(os.listdir(os.path.join(folder, "task")))
        except OSError:
            pass  # it has ended
    return count


def _tasks_left() -> Optional[int]:
    left = []
    for _, folder in cgroup.folders("/proc", "pids"):
        most, now = (read_text(os.path.join(folder, name)).strip() for name in ("pids.max", "pids.current"))
        if most.isdigit() and now.isdigit():
            left.append(max(0, int(most) - int(now)))
    return min(left, default=None)


def _throttled() -> Optional[float]:
    folder = next((folder for _, folder in cgroup.folders("/proc", "cpu")), "/sys/fs/cgroup")
    found: Dict[str, str] = dict(re.findall(r"^(\w+) (\d+)$", read_text(os.path.join(folder, "cpu.stat")), re.M))
    periods = int(found.get("nr_periods", 0))
    return int(found.get("nr_throttled", 0)) / periods if periods else None


def _interfaces() -> List[Interface]:
    found: List[Interface] = []
    for path in sorted(glob.glob("/sys/class/net/*/mtu")):
        text = read_text(path).strip()
        if text.isdigit():
            found.append({"name": os.path.basename(os.path.dirname(path)), "mtu": int(text)})
    return found


def _fabric() -> List[FabricPort]:
    found: List[FabricPort] = []
    for folder in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        number = os.path.basename(folder)
        if number.isdigit():
            state, link, rate = (
                read_text(os.path.join(folder, name)).strip() for name in ("state", "link_layer", "rate")
            )
            device = os.path.basename(os.path.dirname(os.path.dirname(folder)))
            found.append(
                {
                    "device": device,
                    "port": int(number),
                    "state": state.partition(": ")[2] or state,
                    "link": link,
                    "rate": rate,
                }
            )
    return found


_FAULTS = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "heat (hardware)",
    "sw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "power supply",
}
"""Suffix of an element's name → what it shows. Idle clocks and power caps are not faults."""


def health(problems: List[str], limit: float = 10.0) -> List[GpuHealth]:
    """Query the driver; what cannot be queried is added to `problems`."""
    program = find_smi()
    if program is None:
        return []
    try:
        answer = ask([program, "-q", "-x"], limit)
    except OSError as error:
        problems.append(f"{program} cannot be started: {error}")
        return []
    if answer.code is None:
        problems.append(f"nvidia-smi did not answer in {limit:g} s and was killed: a GPU or its driver hangs")
        return []
    return read_health(answer.out, problems)


def read_health(text: str, problems: List[str]) -> List[GpuHealth]:
    """Parse the XML. A GPU that fell off the bus is missing in it, or shows `GPU is lost`, which becomes a problem."""
    for line in re.findall(r"^.*(?:GPU is lost|Unable to determine the device handle).*$", text, re.MULTILINE | re.I):
        problems.append(f"nvidia-smi says: {line.strip()[:200]}")
    try:
        # What the driver's own program printed here, for the user who runs it.
        root = ElementTree.fromstring(text[max(0, text.find("<nvidia_smi_log")) :])  # noqa: S314
    except ElementTree.ParseError as error:
        if "<" not in text and text.strip():
            complain([text.strip().splitlines()[0]], problems)
        elif not problems:
            problems.append(f"nvidia-smi -q -x cannot be read: {error}")
        return []
    return [_health_of(index, gpu) for index, gpu in enumerate(root.findall("gpu"))]


def _health_of(index: int, gpu: ElementTree.Element) -> GpuHealth:
    reasons = gpu.find("clocks_event_reasons")
    if reasons is None:
        reasons = gpu.find("clocks_throttle_reasons")
    active = [
        _FAULTS[name]
        for child in (() if reasons is None else reasons)
        for name in [re.sub(r"^clocks_(?:event|throttle)_reason_", "", child.tag)]
        if name in _FAULTS and (child.text or "").strip() == "Active"
    ]
    errors = [
        _number(element)
        for element in gpu.findall("ecc_errors/volatile/*")
        if "uncorrectable" in element.tag and element.tag != "sram_uncorrectable_error_sources"
    ]
    errors += [_number(gpu.find("ecc_errors/volatile/double_bit/total"))]
    known = [int(error) for error in errors if error is not None]
    power = gpu.find("gpu_power_readings")
    power = gpu.find("power_readings") if power is None else power
    own = [_number(element) for element in gpu.findall("processes/process_info/used_memory")]
    used = int((_number(gpu.find("fb_memory_usage/used")) or 0) * (1 << 20))
    return {
        "index": index,
        "name": (gpu.findtext("product_name") or "").strip()[:100],
        "uncorrected": sum(known) if known else None,
        "remap_pending": _yes(gpu.findtext("remapped_rows/remapped_row_pending")),
        "remap_failed": _yes(gpu.findtext("remapped_rows/remapped_row_failure")),
        "slowdown": active,
        "width": _whole(gpu.find("pci/pci_gpu_link_info/link_widths/current_link_width")),
        "width_max": _whole(gpu.find("pci/pci_gpu_link_info/link_widths/max_link_width")),
        "power_limit": _first(power, "current_power_limit", "power_limit"),
        "power_default": _first(power, "default_power_limit"),
        "mig": (gpu.findtext("mig_mode/current_mig") or "").strip() == "Enabled",
        "memory_used": used,
        # One whose memory the driver does not tell may hold the rest.
        "memory_seen": used if None in own else int(sum(one for one in own if one is not None) * (1 << 20)),
    }


def _number(element: Optional[ElementTree.Element]) -> Optional[float]:
    found = re.match(r"\s*(\d+(?:\.\d+)?)", element.text or "") if element is not None else None
    return float(found[1]) if found else None


def _whole(element: Optional[ElementTree.Element]) -> Optional[int]:
    value = _number(element)
    return None if value is None else int(value)


def _first(parent: Optional[ElementTree.Element], *names: str) -> Optional[float]:
    found = [] if parent is None else [_number(parent.find(name)) for name in names]
    return next((value for value in found if value is not None), None)


def _yes(text: Optional[str]) -> Optional[bool]:
    return {"Yes": True, "No": False}.get((text or "").strip())
