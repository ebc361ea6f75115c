"""A host's load from its telemetry records: typed, checked, and safe to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.formatting import number
from runner.ids import short
from runner.untrusted.bounded import each, text, whole

_MOST_GPUS = 64
_MOST_PROCESSES = 200


@dataclass(frozen=True)
class GpuLoad:
    """A GPU. None stands for values that the card or its driver does not report."""

    index: int
    name: str = ""
    use: float | None = None
    """Percent."""
    mem_used: float | None = None
    """Bytes."""
    mem_total: float | None = None
    power: float | None = None
    """Watts."""
    power_limit: float | None = None
    temp: float | None = None
    """°C."""
    throttle: bool = False
    """Whether it is throttled by heat."""


@dataclass(frozen=True)
class ProcessLoad:
    """A process of a host."""

    pid: int
    user: str
    command: str
    cpu: float | None = None
    """Percent of one core."""
    rss: float | None = None
    gpus: tuple[int, ...] = ()
    gpu_memory: float | None = None
    run: str = ""
    """The short id of its run; empty for none."""
    tag: str = ""
    """run/node/attempt."""


@dataclass(frozen=True)
class Load:
    """A host at one moment. Percent, bytes, bytes a second."""

    t: float
    cpu: float | None = None
    cpus: int | None = None
    """Logical CPUs."""
    load: float | None = None
    mem_used: float | None = None
    mem_total: float | None = None
    swap_used: float | None = None
    net_rx: float | None = None
    net_tx: float | None = None
    disk_free: float | None = None
    disk_total: float | None = None
    gpus: tuple[GpuLoad, ...] = ()
    processes: tuple[ProcessLoad, ...] = ()
    process_count: int = 0


def load_of(record: Mapping[str, Any]) -> Load | None:
    """Read a telemetry record. Returns None for a record without a time; malformed values are ignored."""
    t = number(record.get("t"))
    if t is None:
        return None
    figures = {name: number(record.get(name)) for name in _FIGURES}
    return Load(
        t,
        **figures,
        cpus=whole(record.get("cpus")),
        gpus=each(record.get("gpus"), _gpu, _MOST_GPUS),
        processes=each(record.get("processes"), _process, _MOST_PROCESSES),
        process_count=whole(record.get("process_count")) or 0,
    )


_FIGURES = (
    "cpu", "load", "mem_used", "mem_total", "swap_used", "net_rx", "net_tx", "disk_free", "disk_total",
)  # fmt: skip
_GPU_FIGURES = ("use", "mem_used", "mem_total", "power", "power_limit", "temp")


def _gpu(item: Mapping[str, Any]) -> GpuLoad | None:
    index = whole(item.get("index"))
    if index is None:
        return None
    figures = {name: number(item.get(name)) for name in _GPU_FIGURES}
    return GpuLoad(index, text(item.get("name"), 60), throttle=item.get("throttle") is True, **figures)


def _process(item: Mapping[str, Any]) -> ProcessLoad | None:
    pid = whole(item.get("pid"))
    if pid is None:
        return None
    gpus = item.get("gpus")
    tag = text(item.get("tag"), 150)
    return ProcessLoad(
        pid,
        text(item.get("user"), 32),
        _command(text(item.get("command"), 300)),
        number(item.get("cpu")),
        number(item.get("rss")),
        tuple(index for one in gpus[:_MOST_GPUS] if (index := whole(one)) is not None)
        if isinstance(gpus, list)
        else (),
        number(item.get("gpu_memory")),
        short(tag.partition("/")[0]),
        tag,
    )


def _command(line: str) -> str:
    """A command line without the folder of its program."""
    program, space, rest = line.partition(" ")
    return (program.rpartition("/")[2] or program) + space + rest if program.startswith("/") else line
