"""Figures of a host over all its GPUs. Pure."""

from __future__ import annotations

from runner.hosts.load import Load
from tui.top.feed import percent


def mean(load: Load | None, name: str) -> float | None:
    """Over all GPUs that tell it."""
    told = _each(load, name)
    return sum(told) / len(told) if told else None


def total(load: Load | None, name: str) -> float | None:
    """Of all GPUs that tell it."""
    told = _each(load, name)
    return sum(told) if told else None


def gpu_memory(load: Load | None) -> float | None:
    """Percent of all GPUs' memory."""
    return percent(total(load, "mem_used"), total(load, "mem_total"))


def hottest(load: Load | None) -> float | None:
    """°C of the hottest GPU."""
    return max(_each(load, "temp"), default=None)


def _each(load: Load | None, name: str) -> list[float]:
    return [value for gpu in (load.gpus if load else ()) if (value := getattr(gpu, name)) is not None]


def told(load: Load | None, name: str) -> float:
    """A figure of the host to order by, -1 where it is not told."""
    value = getattr(load, name) if load else None
    return -1.0 if value is None else float(value)


def memory(load: Load | None) -> tuple[float | None, float | None]:
    """Used and total."""
    return (load.mem_used, load.mem_total) if load else (None, None)
