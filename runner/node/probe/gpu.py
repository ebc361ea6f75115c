"""NVIDIA GPUs as reported by nvidia-smi, parsed leniently: its output differs between driver generations."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from typing import TYPE_CHECKING, Container, Dict, List, Optional, Sequence

from .. import procs
from ..child import Answer, ask, together

if TYPE_CHECKING:
    from ...protocol.facts import Gpu

FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu", "driver_version")
"""Fields that every driver since 2013 knows; later ones are only requested if they are supported."""
_LATER = ("compute_cap", "mig.mode.current")
"""The first was added in driver 470, the second in 450."""

_APP_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")
# GPU 0: NVIDIA A100 (UUID: GPU-5…), and below it   MIG 3g.40gb     Device  0: (UUID: MIG-a…)
_CARD = re.compile(r"GPU \d{1,4}:.{0,200}\(UUID: (\S{1,80})\)")
_SLICE = re.compile(r"\s{1,8}MIG (\S{1,40})\s{1,20}Device\s{1,8}\d{1,4}: \(UUID: (\S{1,100})\)")
# 9.0; a driver's version has more digits.
_CAPABILITY = re.compile(r"\d{1,2}\.\d|\[?N/A\]?|\[.{1,40}\]")
_MODES = ("Enabled", "Disabled")
_MODES_KNOWN = (*_MODES, "[N/A]", "N/A", "[Not Supported]")
# Messages of healthy machines, which are not problems.
_QUIET = ("no running processes found", "no running compute processes found", "no devices were found")


def facts(problems: List[str], limit: float = 10.0) -> List[Gpu]:
    """Return the probe's `gpus`; sentences about what is wrong with them are added to `problems`.

    Args:
        problems: Receives the sentences.
        limit: Seconds after which nvidia-smi counts as hung and is killed.
    """
    program = find_smi()
    if program is None:
        if has_device():
            problems.append("NVIDIA device found, but nvidia-smi is not in PATH: its GPUs are not visible")
        return []
    queries = {
        "gpus": "--query-gpu=" + ",".join((*FIELDS, *_LATER)),
        "apps": "--query-compute-apps=" + ",".join(_APP_FIELDS),
        "list": "-L",
    }
    asked = together({name: partial(_ask, program, query, limit) for name, query in queries.items()}, limit + 1)
    answer, apps, listed = (item if isinstance(item, Answer) else None for item in map(asked.get, queries))
    if answer is not None and answer.code and any(name in answer.out + answer.err for name in _LATER):
        answer = _ask(program, "--query-gpu=" + ",".join(FIELDS), limit)
    if answer is None or answer.code is None:
        problems.append(_no_answer(program, answer, limit))
        return []
    text = answer.out + answer.err
    if not text.strip() and (answer.code or has_device()):
        problems.append(f"nvidia-smi prints nothing (exit code {answer.code}): the GPUs are not visible")
    gpus = parse_gpus(text, problems)
    if gpus and (apps is None or apps.code is None):
        problems.append(_no_answer(program, apps, limit) + ": who uses the GPUs is unknown")
    elif gpus and apps is not None:
        parse_apps(apps.out + apps.err, gpus, problems)
    rows = [row for row in _rows(text) if len(row) >= len(FIELDS)]
    cut = {row[1] for row in rows if len(row) > len(FIELDS) and row[-1] == "Enabled"}
    unlisted = listed is None or listed.code is None
    # A driver that knows compute_cap but not the MIG mode has no MIG.
    if unlisted and gpus and any(len(row) != len(FIELDS) + 1 and row[-1] not in _MODES_KNOWN for row in rows):
        problems.append(_no_answer(program, listed, limit) + ": MIG slices are unknown")
    return without_slices(listed.out if listed else "", gpus, problems, cut, listed=not unlisted)


def find_smi() -> Optional[str]:
    """Return the path of nvidia-smi, or None."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/bin:/usr/lib/wsl/lib")


def has_device() -> bool:
    """Whether an NVIDIA driver is loaded and visible from here."""
    paths = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/nvhost-gpu")  # the last one: Jetson
    return any(os.path.exists(path) for path in paths)


def parse_gpus(text: str, problems: List[str]) -> List[Gpu]:
    """Read the answer to --query-gpu (FIELDS, then perhaps compute_cap; csv, noheader, nounits)."""
    gpus: List[Gpu] = []
    for row in _rows(text):
        if len(row) > len(FIELDS) + 1 and (row[-1] in _MODES or all(map(_CAPABILITY.fullmatch, row[-2:]))):
            row.pop()  # of MIG
        if len(row) > len(FIELDS):
            # A name may contain commas: the fields after it are counted from the end.
            behind = len(FIELDS) - 3 + bool(_CAPABILITY.fullmatch(row[-1]))
            row[2:-behind] = [", ".join(row[2:-behind])]
        if len(row) < len(FIELDS) or not row[0].isdigit():
            complain(row, problems)
            continue
        if row[2].startswith("["):
            problems.append(f"GPU {row[0]} does not answer, and is skipped: nvidia-smi says {row[2]}")
            continue
        total, used = megabytes(row[3]), megabytes(row[4])
        if not total:
            problems.append(f"GPU {row[0]} ({row[2]}) does not report its memory: nvidia-smi says {row[3]}")
        elif used is None:
            what = f"its used memory: nvidia-smi says {row[4]}; only processes show whether it is free"
            problems.append(f"GPU {row[0]} ({row[2]}) does not report {what}")
        gpus.append(
            {
                "index": int(row[0]),
                "uuid": row[1],
                "name": row[2],
                "memory_total": total or 0,
                "memory_used": used or 0,
                "use": number(row[5]),
                "driver": row[6],
                "compute_capability": row[7] if len(row) > 7 and number(row[7]) is not None else "",
                "processes": [],
            }
        )
    return gpus


def parse_apps(text: str, gpus: List[Gpu], problems: List[str]) -> None:
    """Parse the answer to --query-compute-apps into the `processes` of the GPUs they run on."""
    by_uuid = {gpu["uuid"]: gpu for gpu in gpus}
    for row in _rows(text):
        if len(row) < 3 or not row[1].isdigit():
            complain(row, problems)
            continue
        gpu = gpus[0] if len(gpus) == 1 else by_uuid.get(row[0])
        if gpu is None:  # a MIG slice has a uuid of its own
            problems.append(f"process {row[1]} computes on {row[0]}, which is not a listed GPU")
            continue
        # The name comes last, as it may contain commas.
        path = ",".join(row[3:])
        gpu["processes"].append(
            {
                "pid": int(row[1]),
                "user": procs.owner_name(int(row[1])),
                "memory": megabytes(row[2]),
                "command": path if path.startswith("[") else os.path.basename(path.split(" ", 1)[0]),
            }
        )


def without_slices(
    text: str, gpus: List[Gpu], problems: List[str], cut: Container[str] = (), *, listed: bool = True
) -> List[Gpu]:
    """Return the GPUs that are whole, according to -L; those split by MIG are named in `problems`.

    A run gives each rank a whole GPU, and NCCL does not connect slices: choosing a slice is left to the user.

    Args:
        cut: Uuids of the GPUs in MIG mode, whether or not they have slices.
        listed: Whether -L succeeded.
    """
    slices: Dict[str, List[str]] = {}
    uuid = ""
    for line in text.splitlines():
        if card := _CARD.match(line):
            uuid = card.group(1)
        elif slice_ := _SLICE.match(line):
            slices.setdefault(uuid, []).append("%s (%s)" % slice_.groups())
    for gpu in gpus:
        if found := slices.get(gpu["uuid"]):
            problems.append(
                "GPU %d (%s) has MIG slices, which runs do not use automatically: %s; one process trains on "
                "one with job.wrap: [env, CUDA_VISIBLE_DEVICES=MIG-…]"
                % (gpu["index"], gpu["name"], ", ".join(found[:16]))
            )
        elif gpu["uuid"] in cut and not listed:
            problems.append(
                "GPU %d (%s) is in MIG mode, which runs do not use automatically" % (gpu["index"], gpu["name"])
            )
        elif gpu["uuid"] in cut:
            problems.append(
                "GPU %d (%s) is in MIG mode without slices, so nothing can compute on it: create one, or end "
                "the mode: nvidia-smi -i %d -mig 0 (as root)" % (gpu["index"], gpu["name"], gpu["index"])
            )
    return [gpu for gpu in gpus if gpu["uuid"] not in slices and gpu["uuid"] not in cut]


def number(text: str) -> Optional[float]:
    """Read a number; None for `[N/A]`, `[Not Supported]`, `ERR!` and any other text."""
    try:
        value = float(text.split(" ", 1)[0])
    except ValueError:
        return None
    return value if 0 <= value < 1e12 else None


def megabytes(text: str) -> Optional[int]:
    """Convert MiB to bytes; None as in `number`."""
    value = number(text)
    return None if value is None else int(value * (1 << 20))


def _ask(program: str, query: str, limit: float) -> Optional[Answer]:
    try:
        form = () if query == "-L" else ("--format=csv,noheader,nounits",)
        return ask([program, query, *form], limit)
    except OSError:
        return None


def _no_answer(program: str, answer: Optional[Answer], limit: float) -> str:
    if answer is None:
        return f"{program} cannot be started"
    return f"nvidia-smi did not answer in {limit:g} s and was killed"


def _rows(text: str) -> List[List[str]]:
    return [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]


def complain(row: Sequence[str], problems: List[str]) -> None:
    """Note a line of nvidia-smi that contains no answer, unless a healthy machine prints it."""
    line = ", ".join(row)
    if not line.lower().startswith(_QUIET):
        problem = f"nvidia-smi says: {line[:200]}"
        if problem not in problems and len(problems) < 20:
            problems.append(problem)
