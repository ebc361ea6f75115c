"""AMD GPUs: their facts by rocm-smi or amd-smi in JSON, parsed leniently since keys differ; their load by the kernel.

Source of the kernel's files: Documentation/gpu/amdgpu (driver-misc.rst, thermal.rst).
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any, List, Literal, Mapping, Optional, Sequence, Tuple

from ...protocol.telemetry import GpuUse
from ..child import ask
from ..disk import read_text
from .gpu import number

if TYPE_CHECKING:
    from ...protocol.facts import Gpu

_ROCM_SMI = (
    "--showuniqueid",
    "--showproductname",
    "--showmeminfo",
    "vram",
    "--showuse",
    "--showdriverversion",
    "--json",
)
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}

DRM = "/sys/class/drm"
_CARD = re.compile(r"card\d+$")
# Cards without power1_average have power1_input; server cards have no temp1 (edge), but temp2 (junction).
_SOURCES: Sequence[Tuple[Literal["use", "mem_used", "mem_total", "power", "temp"], int, Sequence[str]]] = (
    ("use", 1, ["gpu_busy_percent"]),
    ("mem_used", 1, ["mem_info_vram_used"]),
    ("mem_total", 1, ["mem_info_vram_total"]),
    ("power", 1_000_000, ["hwmon/*/power1_average", "hwmon/*/power1_input"]),
    ("temp", 1000, ["hwmon/*/temp1_input", "hwmon/*/temp2_input"]),
)
"""Field of the record → its divisor, and the files that report it."""


def folders() -> List[str]:
    """Return the folder of each GPU that the kernel's amdgpu drives, in the order of rocm-smi: by PCI address."""
    try:
        cards = [os.path.realpath(os.path.join(DRM, name, "device")) for name in os.listdir(DRM) if _CARD.match(name)]
    except OSError:
        return []
    return sorted(one for one in cards if os.path.exists(os.path.join(one, "mem_info_vram_total")))


def load() -> List[GpuUse]:
    """Return the `gpus` of a telemetry record; values that a card does not report are absent."""
    gpus = []
    for index, folder in enumerate(folders()):
        gpu = GpuUse(index=index)
        for key, scale, names in _SOURCES:
            paths = (path for name in names for path in glob.glob(os.path.join(folder, name)))
            values = (number(read_text(path).strip()) for path in paths)
            value = next((one for one in values if one is not None), None)
            if value is not None:
                gpu[key] = value / scale
        gpus.append(gpu)
    return gpus


def facts(problems: List[str], limit: float = 10.0) -> List[Gpu]:
    """Return AMD's GPUs as the probe's `gpus`; empty if neither program exists or answers."""
    rocm, amd = (shutil.which(name) or shutil.which(name, path="/opt/rocm/bin") for name in ("rocm-smi", "amd-smi"))
    gpus: List[Gpu] = []
    if amd:
        gpus = parse_amd_smi(_json([amd, "static", "--json"], limit), _json([amd, "metric", "--json"], limit), problems)
    if rocm and not gpus:
        gpus = parse_rocm_smi(_json([rocm, *_ROCM_SMI], limit), problems)
    if not gpus and os.path.exists("/dev/kfd"):
        said = " and ".join(os.path.basename(program) for program in (amd, rocm) if program)
        found = "%s named none" % said if said else "neither amd-smi nor rocm-smi is in PATH"
        problems.append("AMD device found, but %s: its GPUs are not visible" % found)
    return gpus


def parse_rocm_smi(answer: Any, problems: List[str]) -> List[Gpu]:
    """Read `rocm-smi --json`: {"card0": {"VRAM Total Memory (B)": "68702699520", …}, "system": {…}}."""
    cards = answer if isinstance(answer, dict) else {}
    system = cards.get("system")
    driver = _first(_lower(system), "driver version")
    gpus: List[Gpu] = []
    for name, fields in cards.items():
        if not (str(name).startswith("card") and str(name)[4:].isdigit() and isinstance(fields, dict)):
            continue
        known = _lower(fields)
        title = _first(known, "card series", "card model", "device name") or "AMD GPU"
        total = _bytes(_first(known, "vram total memory (b)"), "B")
        used = _bytes(_first(known, "vram total used memory (b)"), "B")
        _name_unknown(int(name[4:]), title, total, used, problems)
        gpus.append(
            {
                "index": int(name[4:]),
                "uuid": _first(known, "unique id"),
                "name": title,
                "memory_total": total or 0,
                "memory_used": used or 0,
                "use": number(_first(known, "gpu use (%)")),
                "driver": driver,
                "compute_capability": _generation(_first(known, "gfx version")),
                "processes": [],
            }
        )
    return sorted(gpus, key=lambda one: one["index"])


def parse_amd_smi(static: Any, metric: Any, problems: List[str]) -> List[Gpu]:
    """Read `amd-smi static --json` and `amd-smi metric --json`: lists, in later releases below `gpu_data`."""
    used = {one.get("gpu"): one for one in _listed(metric)}
    gpus: List[Gpu] = []
    for one in _listed(static):
        index = one.get("gpu")
        if not isinstance(index, int) or isinstance(index, bool):
            continue
        asic, now = _below(one, "asic"), used.get(index, {})
        memory, activity = _below(now, "mem_usage"), _below(now, "usage")
        vram = _below(one, "vram")
        total = _bytes(vram.get("size"))
        total = _bytes(vram.get("size_mb", vram.get("vram_size_mb")), "MB") if total is None else total
        total = _bytes(memory.get("total_vram")) if total is None else total
        name, taken = _first(asic, "market_name") or "AMD GPU", _bytes(memory.get("used_vram"))
        _name_unknown(index, name, total, taken, problems)
        parts = _below(one, "partition")
        mode = _first(parts, "accelerator_partition", "compute_partition")
        if mode not in ("", "SPX"):
            mode += f"/{memory_mode}" if (memory_mode := _first(parts, "memory_partition")) else ""
            problems.append(
                f"GPU {index} ({name}) is one part of a partitioned card ({mode}): others may share its memory"
            )
        gpus.append(
            {
                "index": index,
                "uuid": _text(asic.get("asic_serial")),
                "name": name,
                "memory_total": total or 0,
                "memory_used": taken or 0,
                "use": number(_text(_value(activity.get("gfx_activity")))),
                "driver": _text(_below(one, "driver").get("version")),
                "compute_capability": _generation(_text(asic.get("target_graphics_version"))),
                "processes": [],
            }
        )
    return gpus


def _name_unknown(index: int, name: str, total: Optional[int], used: Optional[int], problems: List[str]) -> None:
    """Report a card that does not show its memory, or how much of it is used."""
    if not total or used is None:
        what = "its used memory" if total else "its memory"
        problems.append("GPU %d (%s) does not report %s" % (index, name, what))


def _generation(name: str) -> str:
    return name if name.startswith("gfx") else ""


def _json(argv: List[str], limit: float) -> Any:
    try:
        answer = ask(argv, limit)
        begin = re.search(r"^[\[{]", answer.out, re.MULTILINE)  # after warnings, as for a device in a low-power state
        # They exit with an error if a single value is unknown, and print warnings before and after.
        return json.JSONDecoder().raw_decode(answer.out, begin.start())[0] if begin else None
    except (OSError, ValueError, RecursionError):
        return None


def _listed(answer: Any) -> List[Mapping[str, object]]:
    found = answer.get("gpu_data") if isinstance(answer, dict) else answer
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _below(fields: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = fields.get(key)
    return found if isinstance(found, dict) else {}


def _lower(fields: Any) -> Mapping[str, object]:
    return {str(key).lower(): value for key, value in fields.items()} if isinstance(fields, dict) else {}


def _first(fields: Mapping[str, object], *keys: str) -> str:
    return next((text for key in keys if (text := _text(fields.get(key))) not in ("", "N/A")), "")


def _value(field: Any) -> Any:
    return field.get("value") if isinstance(field, dict) else field


def _text(value: Any) -> str:
    return str(value)[:200] if isinstance(value, (str, int, float)) else ""


def _bytes(field: Any, unit: str = "") -> Optional[int]:
    """Read `{"value": 196592, "unit": "MB"}`, `"196592 MB"`, or a number in `unit`; None for any other text."""
    text, _, given = _text(_value(field)).partition(" ")
    given = _text(field.get("unit")) if isinstance(field, dict) else given
    size, factor = number(text), _UNITS.get((given or unit).strip().upper())
    return None if size is None or factor is None or size * factor >= 1 << 50 else int(size * factor)
