"""Memory that ran out: which memory, by how much, and what to do. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from runner.diagnose.cause import Failure
from runner.formatting import gibibytes
from runner.protocol import events
from runner.protocol.telemetry import Telemetry
from runner.text import clean

_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"
_CUDA = re.compile(r"(?:CUDA|HIP|XPU) out of memory", re.IGNORECASE)
_CUDA_FIELDS = {
    "wanted": re.compile(rf"Tried to allocate {_SIZE}"),
    "total": re.compile(rf"(?:total capaci?ty of {_SIZE}|{_SIZE} total capacity)"),
    "free": re.compile(rf"(?:of which {_SIZE} is free|{_SIZE} free)"),
    "allocated": re.compile(rf"(?:memory {_SIZE} is allocated by PyTorch|{_SIZE} already allocated)"),
    "unused": re.compile(rf"and {_SIZE} is reserved by PyTorch but unallocated"),
    "others": re.compile(rf"Process \d+ has {_SIZE} memory in use"),
}
_ALLOCATOR = re.compile(
    r"DefaultCPUAllocator: (?:can't|not enough) .*?(?:allocate|tried to allocate) (\d+) bytes", re.DOTALL
)
_NUMPY = re.compile(rf"Unable to allocate {_SIZE} for an array")
_SHARED = re.compile(
    r"out of shared memory|insufficient shared memory|unable to (?:open|allocate|mmap|resize) .*shared memory"
    r"|/torch_\d+.*No space",
    re.IGNORECASE,
)
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_LESS = "Use a smaller batch or sequence, shard (`parallel.strategy: fsdp`), or recompute activations."


@dataclass(frozen=True)
class OutOfMemory:
    """What ran out, in words, and the cure."""

    kind: str
    """gpu, host, allocation, shared."""
    text: str
    cure: str
    certain: bool = True


def out_of_memory(failure: Failure, telemetry: Telemetry | None = None) -> OutOfMemory | None:
    """Tell whether memory was the reason, None where nothing speaks for it.

    Args:
        telemetry: The host's last telemetry record.
    """
    text = f"{failure.type}: {failure.message}\n{failure.traceback[-4000:]}"
    if _SHARED.search(text) or failure.code == -signal.SIGBUS:
        said = "" if _SHARED.search(text) else "probably "
        cure = "Make /dev/shm larger (in Docker: --shm-size or --ipc=host), or use fewer DataLoader workers."
        return OutOfMemory("shared", f"{said}shared memory (/dev/shm) is full on {clean(failure.host)}", cure, not said)
    if _CUDA.search(text):
        return _cuda(text)
    wanted = _ALLOCATOR.search(text)
    if wanted:
        size = gibibytes(float(wanted.group(1)))
        return OutOfMemory("allocation", f"memory of {clean(failure.host)} could not give {size} in one piece", _LESS)
    array = _NUMPY.search(text)
    if array or failure.type.rpartition(".")[2] == "MemoryError":
        size = f" {array.group(1)} {array.group(2)}" if array else " what was asked for"
        return OutOfMemory("allocation", f"memory of {clean(failure.host)} could not give{size}", _LESS)
    if failure.code == -signal.SIGKILL and not failure.ended_by_us:
        return _killed(failure, telemetry)
    return None


def _cuda(text: str) -> OutOfMemory:
    size = {name: _size(pattern, text) for name, pattern in _CUDA_FIELDS.items()}
    parts = []
    for name, words in (("wanted", "wanted {}"), ("free", "{} were free"), ("total", "of {}")):
        value = size[name]
        if value is not None:
            parts.append(words.format(gibibytes(value)))
    used = [f"PyTorch holds {gibibytes(value)}" for value in [size["allocated"]] if value is not None]
    words = "the GPU's memory is full" + (f": {', '.join([*parts, *used])}" if parts or used else "")
    cure = _LESS
    unused, others = size["unused"], size["others"]
    if others and size["total"] and others > 0.2 * size["total"]:
        cure = f"Another program holds {gibibytes(others)} of it: end that, or give this run other GPUs. " + _LESS
    elif unused and size["wanted"] and unused > size["wanted"]:
        cure = f"{gibibytes(unused)} are lost to fragments: set PYTORCH_ALLOC_CONF=expandable_segments:True. " + _LESS
    return OutOfMemory("gpu", words, cure)


def _killed(failure: Failure, telemetry: Telemetry | None) -> OutOfMemory | None:
    cure = (
        "Use fewer processes or DataLoader workers on this host, or smaller batches; see its memory in the telemetry."
    )
    oom: events.OomEvidence = failure.oom or {}
    killer = "the kernel's out-of-memory killer ended it"
    limit = oom.get("limit")
    if oom.get("group"):
        size = f" of {gibibytes(limit)}" if limit is not None else ""
        return OutOfMemory("host", f"{killer}: the control group's memory limit{size} was reached", cure)
    if oom.get("kernel"):
        return OutOfMemory("host", f"{killer}: {clean(oom['kernel'])[:200]}", cure)
    if oom.get("machine"):
        words = f"perhaps {killer}: it was at work on {clean(failure.host)} just then"
        return OutOfMemory("host", words, cure, certain=False)
    used, total = (telemetry.get("mem_used"), telemetry.get("mem_total")) if telemetry else (None, None)
    if used is not None and total and used > 0.95 * total:
        words = f"memory of {clean(failure.host)} was nearly full ({gibibytes(used)} of {gibibytes(total)})"
        return OutOfMemory("host", f"probably {killer}: {words}", cure, certain=False)
    return None


def _size(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    if not found:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    return float(number) * _UNITS[unit]
