"""Figures of a host over all its GPUs, and who has leased them. Pure."""

from __future__ import annotations

from runner.hosts.load import Load
from runner.protocol.lease_words import holder, who_has
from runner.protocol.leases import Lease
from runner.runs.watch import HostNow
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


def lease_of(host: HostNow, gpu: int) -> Lease | None:
    """The lease of a GPU, or of its whole host; None: none is known."""
    return next((one for one in _held(host) if one["gpus"] is None or gpu in one["gpus"]), None)


def lease_words(host: HostNow, lease: Lease) -> str:
    """`alice's llama-7f3a, 41 % done, about 3 h left`."""
    return who_has(lease, _now(host))


def other_leases(host: HostNow) -> list[str]:
    """The leases that name no GPU which is shown: `bob has the whole host by hand, with no end`."""
    shown = {gpu.index for gpu in host.load.gpus} if host.load else set()
    others = (one for one in _held(host) if not shown & set(one["gpus"] or ()) and not (shown and one["gpus"] is None))
    return [holder(one, _now(host)) for one in others]


def leased(host: HostNow) -> int:
    """The number of its GPUs that are leased."""
    return sum(lease_of(host, gpu.index) is not None for gpu in host.load.gpus) if host.load else 0


def _now(host: HostNow) -> float:
    """Unix time of the host, as last heard."""
    return host.load.t if host.load else host.since


def _held(host: HostNow) -> list[Lease]:
    return [one for one in host.leases or () if one["state"] == "held"]
