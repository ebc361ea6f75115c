"""What a host has: the probe's answer (docs/formats.md, "Probe") as frozen dataclasses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    user: str
    memory: int | None
    """Bytes, None where the driver does not say."""
    command: str


@dataclass(frozen=True)
class Gpu:
    """One GPU, with who uses it. Memory in bytes, `use` in percent."""

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_used: int
    use: float | None
    driver: str
    compute_capability: str
    processes: tuple[GpuProcess, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether somebody computes on it: a process holds it, or over a tenth of its memory is taken."""
        return bool(self.processes) or self.memory_used > self.memory_total * 0.1


@dataclass(frozen=True)
class Cpu:
    """Processors: what is there, and what affinity and cgroup quota leave of it."""

    model: str
    physical: int
    logical: int
    affinity: int
    quota: float | None
    """Cores' worth of CPU time that the cgroup allows, None: no limit."""
    available: int
    """Physical cores that this login can really use, at least 1."""
    load: float


@dataclass(frozen=True)
class Memory:
    """Bytes; `limit` is the cgroup's, None: no limit."""

    total: int
    available: int
    limit: int | None


@dataclass(frozen=True)
class Nic:
    """A network interface. `speed` in Mbit/s, None where the kernel does not know."""

    name: str
    addresses: tuple[str, ...]
    speed: int | None
    up: bool
    loopback: bool
    virtual: bool


@dataclass(frozen=True)
class Interpreter:
    """A Python on the host; `torch` None: it has none. Versions are read from files, nothing is imported."""

    path: str
    version: str
    torch: str | None
    cuda: str | None
    nccl: str | None
    source: str


@dataclass(frozen=True)
class Disk:
    """The file system of the run folder, bytes."""

    path: str
    total: int
    free: int
    writable: bool


@dataclass(frozen=True)
class Workdir:
    """The folder the job runs in, and whether its script is there."""

    path: str
    exists: bool
    script: str | None
    script_exists: bool | None


@dataclass(frozen=True)
class Needs:
    """What the job needs and the host does not have, where that is known."""

    module: str | None = None
    """The first part of the module's name that is not there; empty: it is there; None: not known."""
    programs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Git:
    """The commit that is checked out, and whether the code differs from it."""

    head: str
    dirty: bool


@dataclass(frozen=True)
class Code:
    """Fingerprints of the job's own code, None where it cannot be read or is too much to look at."""

    script: str | None
    folder: str | None
    """Of all Python files in the script's folder or in the package, and below."""
    git: Git | None
    nccl_line: int | None
    """Where the script itself begins a process group with nccl."""


@dataclass(frozen=True)
class HostFacts:
    """Everything the probe found on one host."""

    hostname: str
    user: str
    home: str
    kernel: str
    arch: str
    boot_id: str
    time: float
    python: str
    psutil: bool
    euid: int
    resolves: tuple[str, ...]
    resolves_to_loopback: bool
    cpu: Cpu
    memory: Memory
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    interpreters: tuple[Interpreter, ...]
    disk: Disk
    workdir: Workdir
    free_port: int | None
    kill_user_processes: bool | None
    linger: bool | None
    problems: tuple[str, ...]
    activate_problem: str = ""
    """How `activate` failed, which is one of `problems`; empty: it did not."""
    needs: Needs = Needs()
    code: Code | None = None
    """None: the job is no file of its own."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HostFacts:
        """Build from the probe's JSON; unknown keys are ignored, so that a newer node program does not hurt."""
        plain = {name: data[name] for name in _PLAIN}
        needs = data.get("needs", {})
        return cls(
            **plain,
            resolves=tuple(data["resolves"]),
            cpu=_take(Cpu, data["cpu"]),
            memory=_take(Memory, data["memory"]),
            gpus=tuple(
                _take(Gpu, {**gpu, "processes": tuple(_take(GpuProcess, p) for p in gpu["processes"])})
                for gpu in data["gpus"]
            ),
            nics=tuple(_take(Nic, {**nic, "addresses": tuple(nic["addresses"])}) for nic in data["nics"]),
            interpreters=tuple(_take(Interpreter, item) for item in data["interpreters"]),
            disk=_take(Disk, data["disk"]),
            workdir=_take(Workdir, data["workdir"]),
            problems=tuple(data["problems"]),
            activate_problem=data.get("activate_problem", ""),
            needs=Needs(needs.get("module"), tuple(needs.get("programs", ()))),
            code=_code(data.get("code")),
        )


_PLAIN = (
    "hostname", "user", "home", "kernel", "arch", "boot_id", "time", "python", "psutil", "euid",
    "resolves_to_loopback", "free_port", "kill_user_processes", "linger",
)  # fmt: skip


def _take(kind: type[Any], data: Mapping[str, Any]) -> Any:
    return kind(**{name: data[name] for name in kind.__dataclass_fields__ if name in data})


def _code(data: Any) -> Code | None:
    if not isinstance(data, Mapping):
        return None
    git, line = data.get("git"), data.get("nccl_line")
    head = _digest(git.get("head")) if isinstance(git, Mapping) else None
    return Code(
        _digest(data.get("script")),
        _digest(data.get("folder")),
        Git(head, bool(git.get("dirty"))) if head and isinstance(git, Mapping) else None,
        line if isinstance(line, int) else None,
    )


def _digest(value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{40,64}", value) else None
