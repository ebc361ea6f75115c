"""The result of a probe (docs/formats.md, "Probe"). Sizes are in bytes."""

from __future__ import annotations

from typing import Literal, TypedDict

from .leases import Lease


class Cpu(TypedDict):
    model: str
    physical: int
    logical: int
    affinity: int
    quota: float | None
    available: int
    """Physical cores that affinity and the cgroup quota leave, at least 1."""
    load: float


class Memory(TypedDict):
    total: int
    available: int
    limit: int | None


class GpuProcess(TypedDict):
    pid: int
    user: str
    memory: int | None
    command: str


class Gpu(TypedDict):
    index: int
    uuid: str
    name: str
    memory_total: int
    memory_used: int
    use: float | None
    driver: str
    compute_capability: str
    processes: list[GpuProcess]


class Nic(TypedDict):
    name: str
    addresses: list[str]
    speed: int | None
    """Mbit/s."""
    up: bool
    loopback: bool
    virtual: bool


Source = Literal["profile", "activate", "path", "conda", "venv", "elsewhere"]
"""Where an interpreter was found."""


class Interpreter(TypedDict):
    path: str
    version: str
    torch: str | None
    cuda: str | None
    nccl: str | None
    mpi: bool | None
    """Whether torch was built with MPI; null if there is no torch, or its files do not show it."""
    source: Source


class Needs(TypedDict):
    """What is missing in the environment that the job will run in."""

    module: str | None
    """The first missing part of the module; "" if it exists, null if only an import would show that."""
    programs: list[str]
    package: str | None
    """The launcher's missing package; "" if it exists, null if not known."""
    version: str | None
    """The first line that the program `version_of` prints for `--version`; null if not known."""


class Software(TypedDict):
    interpreters: list[Interpreter]
    activate_problem: str
    needs: Needs


class Git(TypedDict):
    head: str
    dirty: bool


class Code(TypedDict):
    """Fingerprints that distinguish versions of the job's own code."""

    file: str | None
    """The word of the request that names the script."""
    script: str | None
    folder: str | None
    git: Git | None
    nccl_line: int | None
    launcher_line: int | None


class Disk(TypedDict):
    path: str
    total: int
    free: int
    writable: bool


class Workdir(TypedDict):
    path: str
    exists: bool
    script: str | None
    script_exists: bool | None


class Facts(Software):
    """The answer of `probe`; a part that could not be read has an empty value."""

    hostname: str
    user: str
    home: str
    kernel: str
    arch: str
    time: float
    python: str
    psutil: bool
    euid: int
    boot_id: str
    resolves: list[str]
    cpu: Cpu
    memory: Memory
    gpus: list[Gpu]
    leases: list[Lease]
    nics: list[Nic]
    code: Code | None
    disk: Disk
    workdir: Workdir
    free_port: int | None
    ports_held: str
    kill_user_processes: bool | None
    linger: bool | None
    resolves_to_loopback: bool
    problems: list[str]
