"""The facts of a host: the probe's answer (docs/formats.md, "Probe") as frozen dataclasses."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.errors import HostError
from runner.formatting import number
from runner.hosts.leases import blocking, own_gpus, read_leases
from runner.protocol.leases import Lease
from runner.text import clean
from runner.untrusted.bounded import MOST, whole


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    user: str
    memory: int | None
    """Bytes, None where the driver does not report them."""
    command: str


@dataclass(frozen=True)
class Gpu:
    """One GPU, with its users. Memory in bytes, `use` in percent."""

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_used: int
    use: float | None
    driver: str
    compute_capability: str
    processes: tuple[GpuProcess, ...] = ()
    lease: Lease | None = None
    """Another's, or another run's, that keeps this user from starting a run on it."""

    @property
    def busy(self) -> bool:
        """Whether it is leased by others or in use."""
        return self.lease is not None or self.in_use

    @property
    def in_use(self) -> bool:
        """Whether a process holds it, or over a tenth of its memory is taken."""
        return bool(self.processes) or self.memory_used > self.memory_total * 0.1


@dataclass(frozen=True)
class Cpu:
    """Processors: the existing ones, and those that affinity and cgroup quota leave."""

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
    mpi: bool | None = None
    """Whether torch was built with MPI; None: not known."""


@dataclass(frozen=True)
class Disk:
    """The file system of the run folder, bytes."""

    path: str
    total: int
    free: int
    writable: bool


@dataclass(frozen=True)
class Workdir:
    """The folder the job runs in, and whether its script exists."""

    path: str
    exists: bool
    script: str | None
    script_exists: bool | None


@dataclass(frozen=True)
class Needs:
    """What the job needs and the host lacks, if known."""

    module: str | None = None
    """The first missing part of the module's name; empty: it exists; None: unknown."""
    programs: tuple[str, ...] = ()
    package: str | None = None
    """The launcher's, if it is missing; empty: it exists; None: unknown."""
    version: str | None = None
    """What the launcher says to `--version`; None: unknown."""


@dataclass(frozen=True)
class Git:
    """The commit that is checked out, and whether the code differs from it."""

    head: str
    dirty: bool


@dataclass(frozen=True)
class Code:
    """Fingerprints of the job's own code, None where it cannot be read or is too large."""

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
    """How `activate` failed, which is also one of `problems`; empty: it did not fail."""
    needs: Needs = Needs()
    code: Code | None = None
    """None: the job has no file to compare."""
    ports_held: str = ""
    """The listeners on the profile's ports, as a text, where no port is free."""
    leases: tuple[Lease, ...] = ()
    """All of the host that count, the oldest first."""
    reserved: tuple[Lease, ...] = ()
    """Those of the whole host that keep this user from starting a run that computes on its CPUs."""
    own_gpus: tuple[int, ...] = ()
    """Indices of those that this user has in leases, which count for a quota."""
    seen: float = 0.0
    """This machine's unix time when the host's `time` arrived: hosts are not probed at the same moment."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HostFacts:
        """Build from the probe's JSON; unknown keys are ignored, so that a newer node program does no harm.

        Raises:
            ValueError: A required field is missing, or a value is impossible.
        """
        return cls(
            hostname=_text(data, "hostname"),
            user=_text(data, "user"),
            home=_text(data, "home"),
            kernel=_text(data, "kernel"),
            arch=_text(data, "arch"),
            boot_id=_text(data, "boot_id"),
            python=_text(data, "python"),
            time=_number(data, "time"),
            seen=0.0,
            psutil=_flag(data, "psutil") or False,
            euid=_whole(data, "euid"),
            resolves=_texts(data, "resolves"),
            resolves_to_loopback=_flag(data, "resolves_to_loopback") or False,
            cpu=_cpu(_object(data, "cpu")),
            memory=_memory(_object(data, "memory")),
            gpus=read_gpus(data),
            nics=tuple(_nic(nic) for nic in _items(data, "nics", _MOST_NICS)),
            interpreters=tuple(_interpreter(one) for one in _items(data, "interpreters", _MOST_INTERPRETERS)),
            disk=_disk(_object(data, "disk")),
            workdir=_workdir(_object(data, "workdir")),
            free_port=_maybe_whole(data, "free_port", 1 << 16),
            kill_user_processes=_flag(data, "kill_user_processes"),
            linger=_flag(data, "linger"),
            problems=_texts(data, "problems", 2000),
            activate_problem=_maybe_text(data, "activate_problem") or "",
            needs=_needs(data.get("needs")),
            code=_code(data.get("code")),
            ports_held=_maybe_text(data, "ports_held") or "",
            leases=read_leases(data.get("leases")),
        )


def read_gpus(data: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """The `gpus` of a host's answer. Raises ValueError."""
    return tuple(_gpu(gpu) for gpu in _items(data, "gpus", _MOST_GPUS))


def with_leases(facts: HostFacts, by: str = "") -> HostFacts:
    """The facts with the leases that keep this user from starting a run, of those who share an account `by` alone."""
    leases = {gpu.index: blocking(facts.leases, [gpu.index], facts.euid, by) for gpu in facts.gpus}
    return replace(
        facts,
        reserved=blocking(facts.leases, [], facts.euid, by),
        own_gpus=own_gpus(facts.leases, [gpu.index for gpu in facts.gpus], facts.euid, by),
        gpus=tuple(replace(gpu, lease=next(iter(leases[gpu.index]), None)) for gpu in facts.gpus),
    )


def without_leases(facts: HostFacts) -> HostFacts:
    """The facts as if nothing were leased."""
    return with_leases(replace(facts, leases=()))


def when_free(facts: HostFacts) -> HostFacts:
    """The facts as they are once nothing is leased, and the programs on leased GPUs have ended."""
    gpus = tuple(
        gpu if gpu.lease is None else replace(gpu, lease=None, processes=(), memory_used=0) for gpu in facts.gpus
    )
    return replace(facts, gpus=gpus, reserved=(), own_gpus=())


def facts_of(host: str, answer: Any) -> HostFacts:
    """A host's answer to the probe. Raises HostError for a malformed one."""
    try:
        return with_leases(replace(HostFacts.from_json(answer), seen=time.time()))
    except (ValueError, AttributeError) as error:
        what = f"its answer to the probe is malformed: {clean(str(error))[:100]}"
        raise HostError(host, what, "See whether another version answers there, or do not trust it.") from None


_MOST_GPUS, _MOST_NICS, _MOST_INTERPRETERS, _MOST_PROCESSES, _MOST_TEXTS = 64, 1024, 256, 1000, 1000
_LONGEST = 4096
"""Characters: of a path."""


def _cpu(data: Mapping[str, Any]) -> Cpu:
    counts = {name: _whole(data, name, 1 << 20) for name in ("physical", "logical", "affinity", "available")}
    return Cpu(_text(data, "model"), **counts, quota=number(data.get("quota")), load=_number(data, "load"))


def _memory(data: Mapping[str, Any]) -> Memory:
    return Memory(_whole(data, "total"), _whole(data, "available"), _maybe_whole(data, "limit"))


def _gpu(data: Mapping[str, Any]) -> Gpu:
    return Gpu(
        uuid=_text(data, "uuid"),
        name=_text(data, "name"),
        driver=_text(data, "driver"),
        compute_capability=_text(data, "compute_capability"),
        index=_whole(data, "index", 1024),
        memory_total=_whole(data, "memory_total"),
        memory_used=_whole(data, "memory_used"),
        use=number(data.get("use")),
        processes=tuple(
            GpuProcess(_whole(one, "pid"), _text(one, "user"), _maybe_whole(one, "memory"), _text(one, "command"))
            for one in _items(data, "processes", _MOST_PROCESSES)
        ),
    )


def _nic(data: Mapping[str, Any]) -> Nic:
    flags = {name: _flag(data, name) or False for name in ("up", "loopback", "virtual")}
    return Nic(_text(data, "name"), _texts(data, "addresses"), _maybe_whole(data, "speed"), **flags)


def _interpreter(data: Mapping[str, Any]) -> Interpreter:
    versions = {name: _maybe_text(data, name) for name in ("torch", "cuda", "nccl")}
    return Interpreter(
        _text(data, "path"), _text(data, "version"), **versions, source=_text(data, "source"), mpi=_flag(data, "mpi")
    )


def _disk(data: Mapping[str, Any]) -> Disk:
    return Disk(_text(data, "path"), _whole(data, "total"), _whole(data, "free"), _flag(data, "writable") or False)


def _workdir(data: Mapping[str, Any]) -> Workdir:
    found = _flag(data, "script_exists")
    return Workdir(_text(data, "path"), _flag(data, "exists") or False, _maybe_text(data, "script"), found)


def _object(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    if not isinstance(value, dict):
        raise ValueError(name)
    return value


def _items(data: Mapping[str, Any], name: str, most: int) -> list[Mapping[str, Any]]:
    value = data.get(name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value[:most]):
        raise ValueError(name)
    return value[:most]


def _text(data: Mapping[str, Any], name: str) -> str:
    # Not cleaned: a path is used as it is; the code that shows it cleans it.
    value = data.get(name)
    if not isinstance(value, str):
        raise ValueError(name)
    return value[:_LONGEST]


def _maybe_text(data: Mapping[str, Any], name: str) -> str | None:
    return None if data.get(name) is None else _text(data, name)


def _texts(data: Mapping[str, Any], name: str, most: int = _LONGEST) -> tuple[str, ...]:
    value = data.get(name)
    if not isinstance(value, list | tuple):
        raise ValueError(name)
    return tuple(item[:most] for item in value[:_MOST_TEXTS] if isinstance(item, str))


def _whole(data: Mapping[str, Any], name: str, below: int = MOST) -> int:
    value = whole(data.get(name), below)
    if value is None:
        raise ValueError(name)
    return value


def _maybe_whole(data: Mapping[str, Any], name: str, below: int = MOST) -> int | None:
    return whole(data.get(name), below)


def _number(data: Mapping[str, Any], name: str) -> float:
    value = number(data.get(name))
    if value is None:
        raise ValueError(name)
    return value


def _flag(data: Mapping[str, Any], name: str) -> bool | None:
    value = data.get(name)
    return value if isinstance(value, bool) else None


def _needs(data: Any) -> Needs:
    if not isinstance(data, dict):
        return Needs()
    return Needs(
        _maybe_text(data, "module"),
        _texts(data, "programs") if "programs" in data else (),
        _maybe_text(data, "package"),
        _maybe_text(data, "version"),
    )


def _code(data: Any) -> Code | None:
    if not isinstance(data, Mapping):
        return None
    git = data.get("git")
    head = _digest(git.get("head")) if isinstance(git, Mapping) else None
    return Code(
        _digest(data.get("script")),
        _digest(data.get("folder")),
        Git(head, bool(git.get("dirty"))) if head and isinstance(git, Mapping) else None,
        _maybe_whole(data, "nccl_line"),
    )


def _digest(value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{40,64}", value) else None
