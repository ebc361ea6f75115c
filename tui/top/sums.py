"""Figures of a host over all its GPUs. Pure."""

from __future__ import annotations

from runner.hosts.load import Load
from tui.top.feed import percent


def mean(load: Load | None, name: str) -> float | None:
    """The mean over all GPUs that report it."""
    known = _each(load, name)
    return sum(known) / len(known) if known else None


def total(load: Load | None, name: str) -> float | None:
    """The sum over all GPUs that report it."""
    known = _each(load, name)
    return sum(known) if known else None


def gpu_memory(load: Load | None) -> float | None:
    """Used share of all GPUs' memory, in percent."""
    return percent(total(load, "mem_used"), total(load, "mem_total"))


def hottest(load: Load | None) -> float | None:
    """°C of the hottest GPU."""
    return max(_each(load, "temp"), default=None)


def _each(load: Load | None, name: str) -> list[float]:
    return [value for gpu in (load.gpus if load else ()) if (value := getattr(gpu, name)) is not None]


def sort_key(load: Load | None, name: str) -> float:
    """A figure of the host to order by, -1 if it is unknown."""
    value = getattr(load, name) if load else None
    return -1.0 if value is None else float(value)


def memory(load: Load | None) -> tuple[float | None, float | None]:
    """Used and total memory, in bytes."""
    return (load.mem_used, load.mem_total) if load else (None, None)
