"""Renders the load of hosts: a line per host, a line per GPU, and the busiest processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from disttui.runner.formatting import gibibytes, table
from disttui.runner.hosts.load import GpuLoad, Load, ProcessLoad
from disttui.runner.runs.watch import HostNow
from disttui.runner.text import clean

PROCESSES = 20
"""Most processes shown."""
_HOST = (("HOST", "<"), ("CPU", ">"), ("LOAD", ">"), ("MEMORY", ">"), ("NET IN", ">"), ("NET OUT", ">"), ("", "<"))
_GPU = (("HOST", "<"), ("GPU", ">"), ("NAME", "<"), ("USE", ">"), ("MEMORY", ">"), ("POWER", ">"), ("TEMP", ">"))
_PROCESS = (
    ("HOST", "<"), ("PID", ">"), ("USER", "<"), ("CPU", ">"), ("MEMORY", ">"), ("GPU", "<"), ("GPU MEM", ">"),
    ("RUN", "<"), ("COMMAND", "<"),
)  # fmt: skip


def render_top(hosts: Sequence[HostNow], width: int = 0) -> str:
    """The tables as text; unknown values are `-`. A `width` above 0 cuts the lines of processes to it."""
    seen = [(host.name, host.load) for host in hosts if host.load is not None]
    parts = [table(_HOST, [_host(host) for host in hosts])]
    gpus = [_gpu(name, gpu) for name, load in seen for gpu in load.gpus]
    if gpus:
        parts.append(table(_GPU, gpus))
    found = [(name, process) for name, load in seen for process in load.processes]
    busy = sorted(found, key=lambda item: (not item[1].gpus, not item[1].run, -(item[1].cpu or 0.0)))[:PROCESSES]
    if busy:
        lines = table(_PROCESS, [_process(name, process) for name, process in busy]).splitlines()
        parts.append("\n".join(line[: width or None] for line in lines))
    return "\n\n".join(parts)


def top_json(hosts: Sequence[HostNow]) -> dict[str, object]:
    """All known data of the hosts for JSON."""
    return {"hosts": [asdict(host) for host in hosts]}


def amount(value: float | None, unit: str) -> str:
    """A rounded number with its unit; `-` if it is unknown."""
    return "-" if value is None else f"{value:.0f} {unit}"


def share_of(used: float | None, total: float | None) -> str:
    """Bytes as `61.2/80.0 GiB`; only `used` if `total` is unknown, `-` if `used` is unknown."""
    if used is None or not total:
        return "-" if used is None else gibibytes(used)
    return f"{used / 2**30:.1f}/{total / 2**30:.1f} GiB"


def rate(value: float | None) -> str:
    """Bytes per second as `1.2 MB/s`; `-` if unknown."""
    if value is None:
        return "-"
    for limit, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if value >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value:.0f} B/s"


def _host(host: HostNow) -> tuple[str, ...]:
    load = host.load or Load(0.0)
    word = {"seen": "", "failed": "✗ ", "not seen": "◇ not seen: "}.get(host.state, f"◌ {host.state}")
    return (
        clean(host.name),
        amount(load.cpu, "%"),
        "-" if load.load is None else f"{load.load:.1f}",
        share_of(load.mem_used, load.mem_total),
        rate(load.net_rx),
        rate(load.net_tx),
        word + clean(host.problem.split("\n")[0]),
    )


def _gpu(host: str, gpu: GpuLoad) -> tuple[str, ...]:
    limit = "" if gpu.power_limit is None else f"/{gpu.power_limit:.0f}"
    return (
        clean(host),
        f"{gpu.index}",
        gpu.name or "-",
        amount(gpu.use, "%"),
        share_of(gpu.mem_used, gpu.mem_total),
        "-" if gpu.power is None else f"{gpu.power:.0f}{limit} W",
        amount(gpu.temp, "°C") + (" hot" if gpu.throttle else ""),
    )


def _process(host: str, process: ProcessLoad) -> tuple[str, ...]:
    return (
        clean(host),
        f"{process.pid}",
        process.user or "-",
        amount(process.cpu, "%"),
        "-" if process.rss is None else gibibytes(process.rss),
        ",".join(map(str, process.gpus)) or "-",
        "-" if process.gpu_memory is None else gibibytes(process.gpu_memory),
        process.run or "-",
        process.command or "(not visible)",
    )
