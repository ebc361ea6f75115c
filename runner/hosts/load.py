"""A host's load from its telemetry records: typed, validated, and safe to print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from disttui.runner.ids import short
from disttui.runner.untrusted.decode import MalformedRecordError, Shown, build

_RANK = re.compile(r"\S.*?/node-\w+\.zip shim (script|module|command) (\S+)")
"""The command line of a rank (docs/architecture.md, the rank shim)."""
_BUILT_IN = re.compile(r"train-\w+\.zip")


@dataclass(frozen=True)
class GpuLoad:
    """A GPU. Values are None if the card or its driver does not report them."""

    index: int
    name: Annotated[str, Shown(60)] = ""
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
    """Whether heat throttles the GPU."""


@dataclass(frozen=True)
class ProcessLoad:
    """A process of a host; memory in bytes."""

    pid: int
    user: Annotated[str, Shown(32)] = ""
    command: Annotated[str, Shown(300)] = ""
    """Command line, without the folder of the program."""
    cpu: float | None = None
    """Percent of one core."""
    rss: float | None = None
    gpus: Annotated[tuple[int, ...], 64] = ()
    gpu_memory: float | None = None
    tag: Annotated[str, Shown(150)] = ""
    """run/node/attempt."""

    @property
    def run(self) -> str:
        """The short id of its run, or ""."""
        return short(self.tag.partition("/")[0])


@dataclass(frozen=True)
class Load:
    """A host at one moment. CPU in percent, sizes in bytes, network rates in bytes per second."""

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
    gpus: Annotated[tuple[GpuLoad, ...], 64] = ()
    processes: Annotated[tuple[ProcessLoad, ...], 200] = ()
    process_count: int = 0


def load_of(record: Mapping[str, object]) -> Load | None:
    """Decode a telemetry record; None for a record without a time. Malformed values are ignored."""
    try:
        found = build(Load, record)
    except MalformedRecordError:
        return None
    return replace(found, processes=tuple(replace(one, command=_command(one.command)) for one in found.processes))


def _command(line: str) -> str:
    """Remove the folder of the program from a command line; for a rank, return that of the user's script."""
    if rank := _RANK.match(line):
        value, rest = rank[2].rpartition("/")[2], line[rank.end() :]
        if _BUILT_IN.fullmatch(value):
            return f"bytegpt{rest}"
        return {"script": "python ", "module": "python -m ", "command": ""}[rank[1]] + value + rest
    program, space, rest = line.partition(" ")
    return (program.rpartition("/")[2] or program) + space + rest if program.startswith("/") else line
