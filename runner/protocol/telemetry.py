"""A record of telemetry.jsonl, and of the stream `telemetry`: a host's load (docs/formats.md, "telemetry.jsonl").

Units: bytes, percent, bytes per second. A value that cannot be read is absent.
"""

from __future__ import annotations

from typing import TypedDict


class RankUse(TypedDict, total=False):
    """A rank's process."""

    cpu: float
    """Percent of one core."""
    rss: int


class GpuCard(TypedDict, total=False):
    """The constants of a GPU."""

    name: str
    power_limit: float


class _Gpu(TypedDict):
    index: int


class GpuUse(_Gpu, GpuCard, total=False):
    """A GPU."""

    use: float
    mem_used: float
    mem_total: float
    power: float
    """Watts."""
    temp: float
    """°C."""
    throttle: bool
    """Whether it is throttled by heat."""
    pids: list[int]
    """The processes on it."""


class _Process(TypedDict):
    pid: int


class ProcessUse(_Process, total=False):
    """A process of the host."""

    user: str
    command: str
    cpu: float
    """Percent of one core."""
    rss: int
    tag: str
    """run/node/attempt."""
    gpus: list[int]
    gpu_memory: float


class _Telemetry(TypedDict):
    t: float
    """Unix time on the host's clock."""


class Telemetry(_Telemetry, total=False):
    """A host at one moment."""

    cpu: float
    load: float
    """Load average of one minute."""
    mem_used: float
    mem_total: float
    swap_used: float
    net_rx: float
    net_tx: float
    disk_free: float
    disk_total: float
    inodes_free: float
    inodes_total: float
    steal: float
    """Percent of CPU time taken by the hypervisor."""
    io_wait: float
    """Percent of the time in which at least one process waited for a disk."""
    swap_rate: float
    """Bytes per second, in and out."""
    ranks: dict[str, RankUse]
    gpus: list[GpuUse]
    cpus: int | None
    process_count: int
    processes: list[ProcessUse]
