"""Facts of a host: the probe's answer (docs/formats.md, "Probe") as frozen dataclasses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from disttui.runner.errors import HostError
from disttui.runner.protocol.leases import Lease, Wish, in_the_way, own_leases, person, read_text
from disttui.runner.text import clean
from disttui.runner.untrusted.decode import COMPUTED, Shown, build
from disttui.runner.untrusted.records import each, text, whole

MOST_LEASES = 1000
"""Leases read from a host: each waiting one is compared with all others."""


def read_leases(items: Any) -> tuple[Lease, ...]:
    """Return the leases in a host's answer; malformed ones are left out."""
    return each(items, _lease, MOST_LEASES)


def blocking(leases: Sequence[Lease], gpus: Sequence[int], uid: int, by: str, run: str = "") -> tuple[Lease, ...]:
    """Return the leases that prevent a run of this user from using `gpus`, or the host's CPUs if that is empty."""
    return tuple(in_the_way(Wish("run", run, list(gpus), False, uid, person(by)), leases))


def own_gpus(leases: Sequence[Lease], gpus: Sequence[int], uid: int, by: str) -> tuple[int, ...]:
    """Return those of a host's GPUs that this user has leased."""
    own = own_leases(Wish("run", "", None, False, uid, person(by)), leases)
    return tuple(
        index for index in gpus if any(one["gpus"] is None or index in one["gpus"][: one["count"]] for one in own)
    )


def own_cpu_runs(leases: Sequence[Lease], uid: int, by: str) -> int:
    """Return the number of this user's runs on a host's CPUs."""
    return len({one["run"] for one in own_leases(Wish("run", "", [], False, uid, person(by)), leases)})


def _lease(one: Mapping[str, object]) -> Lease | None:
    written, uid = read_text(one), whole(one.get("uid"))
    if written is None or uid is None:
        return None
    note, by, user = (text(one.get(name), 200) for name in ("note", "by", "user"))
    return {**written, "note": note, "by": by, "user": user or "another user", "uid": uid}


_Count = Annotated[int, 1 << 20]
_Digest = Annotated[str, "[0-9a-f]{40,64}"]
_Shown = Annotated[str, Shown(4096)]


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    user: _Shown
    memory: int | None
    """Bytes; None if the driver does not report them."""
    command: _Shown


@dataclass(frozen=True)
class Gpu:
    """A GPU and its users. Memory in bytes, `use` in percent."""

    index: Annotated[int, 1024]
    uuid: str
    name: _Shown
    memory_total: int
    memory_used: int
    use: float | None
    driver: str
    compute_capability: str
    processes: Annotated[tuple[GpuProcess, ...], 1000] = ()
    lease: Annotated[Lease | None, COMPUTED] = None
    """A lease of another user or run that prevents this user from starting a run on it."""

    @property
    def size(self) -> str:
        """Its memory as text: `80 GiB`."""
        return f"{round(self.memory_total / 2**30)} GiB" if self.memory_total else "memory unknown"

    @property
    def busy(self) -> bool:
        """Whether the GPU is leased by others or in use."""
        return self.lease is not None or self.in_use

    @property
    def in_use(self) -> bool:
        """Whether a process holds the GPU, or more than a tenth of its memory is used."""
        return bool(self.processes) or (self.memory_total > 0 and self.memory_used > self.memory_total * 0.1)


@dataclass(frozen=True)
class Cpu:
    """Processors: those that exist, and those that affinity and cgroup quota leave available."""

    model: str
    physical: _Count
    logical: _Count
    affinity: _Count
    quota: float | None
    """CPU time that the cgroup allows, in cores; None if unlimited."""
    available: _Count
    """Physical cores that this login can use, at least 1."""
    load: float


@dataclass(frozen=True)
class Memory:
    """Memory in bytes; `limit` is the cgroup's, None if unlimited."""

    total: int
    available: int
    limit: int | None


@dataclass(frozen=True)
class Nic:
    """A network interface. `speed` in Mbit/s, None if unknown to the kernel."""

    name: str
    addresses: tuple[str, ...]
    speed: int | None
    up: bool
    loopback: bool
    virtual: bool


@dataclass(frozen=True)
class Interpreter:
    """A Python on the host; `torch` is None if it lacks torch. Versions are read from files, without imports."""

    path: str
    version: _Shown
    torch: _Shown | None
    cuda: _Shown | None
    nccl: _Shown | None
    source: str
    mpi: bool | None = None
    """Whether torch was built with MPI; None if unknown."""

    @property
    def on_gpus(self) -> bool:
        """Whether its torch is built for GPUs."""
        return bool(self.cuda) or self.rocm

    @property
    def rocm(self) -> bool:
        """Whether its torch is built for AMD's GPUs, as 2.7.0+rocm6.3 is."""
        return "rocm" in (self.torch or "")

    @property
    def is_eligible(self) -> bool:
        """Whether `python: auto` may choose it: it has torch, and is not another project's environment."""
        return bool(self.torch) and self.source != "elsewhere"


@dataclass(frozen=True)
class Disk:
    """The file system of the run folder; sizes in bytes."""

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
    """The first missing part of the module's name; "" if it exists, None if unknown."""
    programs: tuple[str, ...] = ()
    package: str | None = None
    """The launcher's package if it is missing; "" if it exists, None if unknown."""
    version: str | None = None
    """The launcher's output for `--version`; None if unknown."""


@dataclass(frozen=True)
class Git:
    """The checked-out commit, and whether the code differs from it."""

    head: _Digest
    dirty: bool


@dataclass(frozen=True)
class Code:
    """Fingerprints of the job's own code; None for what cannot be read or is too large."""

    file: str | None
    """The word of the profile that names the script."""
    script: _Digest | None
    folder: _Digest | None
    """Digest of all Python files in the script's folder or in the package, recursively."""
    git: Git | None
    nccl_line: int | None
    """Line in which the script itself creates a process group with nccl."""
    launcher_line: int | None
    """Line in which a shell script starts a launcher of ranks without naming other hosts."""


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
    gpus: Annotated[tuple[Gpu, ...], 64]
    nics: Annotated[tuple[Nic, ...], 1024]
    interpreters: Annotated[tuple[Interpreter, ...], 256]
    disk: Disk
    workdir: Workdir
    free_port: Annotated[int, 1 << 16] | None
    kill_user_processes: bool | None
    linger: bool | None
    problems: tuple[Annotated[str, Shown(2000)], ...]
    activate_problem: Annotated[str, Shown(2000)] = ""
    """How `activate` failed, which is also in `problems`; "" if it succeeded."""
    needs: Needs = Needs()
    code: Code | None = None
    """None if the job has no file to compare."""
    ports_held: str = ""
    """The listeners on the profile's ports, as text, if no port is free."""
    leases: Annotated[tuple[Lease, ...], COMPUTED] = ()
    """All valid leases of the host, oldest first."""
    reserved: Annotated[tuple[Lease, ...], COMPUTED] = ()
    """Leases of the whole host that prevent this user from starting a run on its CPUs."""
    own_gpus: Annotated[tuple[int, ...], COMPUTED] = ()
    """Indices of GPUs that this user has leased, which count towards a quota."""
    own_cpu_runs: Annotated[int, COMPUTED] = 0
    """Number of this user's runs on its CPUs, which count towards a quota."""
    gpus_now: Annotated[tuple[Gpu, ...], COMPUTED] = ()
    """The GPUs' current state, if `gpus` has their expected state; see `when_free`."""
    packages: Annotated[Mapping[str, str], COMPUTED] = field(default_factory=dict)
    """Name → version of the packages that the environment of `job.environment` has."""
    seen: Annotated[float, COMPUTED] = 0.0
    """This machine's unix time when the host's `time` arrived: hosts are not probed at the same moment."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HostFacts:
        """Build from the probe's JSON; unknown keys are ignored, since a newer node program may send more.

        Raises:
            ValueError: A required field is missing or invalid.
        """
        return replace(build(cls, data), leases=read_leases(data.get("leases")))


@dataclass(frozen=True)
class _Gpus:
    gpus: Annotated[tuple[Gpu, ...], 64]


def read_gpus(data: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """Decode the `gpus` of a host's answer. Raises ValueError."""
    return build(_Gpus, data).gpus


def with_leases(facts: HostFacts, by: str = "") -> HostFacts:
    """Return the facts with the leases that apply to this user; `by` names the person on a shared account."""
    leases = {gpu.index: blocking(facts.leases, [gpu.index], facts.euid, by) for gpu in facts.gpus}
    return replace(
        facts,
        reserved=blocking(facts.leases, [], facts.euid, by),
        own_gpus=own_gpus(facts.leases, [gpu.index for gpu in facts.gpus], facts.euid, by),
        own_cpu_runs=own_cpu_runs(facts.leases, facts.euid, by),
        gpus=tuple(replace(gpu, lease=next(iter(leases[gpu.index]), None)) for gpu in facts.gpus),
    )


def without_leases(facts: HostFacts) -> HostFacts:
    """Return the facts as if nothing were leased."""
    return with_leases(replace(facts, leases=()))


def when_free(facts: HostFacts) -> HostFacts:
    """Return the facts expected once all leases and the programs on leased GPUs have ended."""
    gpus = tuple(
        gpu if gpu.lease is None else replace(gpu, lease=None, processes=(), memory_used=0) for gpu in facts.gpus
    )
    return replace(facts, gpus=gpus, gpus_now=facts.gpus, reserved=(), own_gpus=(), own_cpu_runs=0)


def facts_of(host: str, answer: Any) -> HostFacts:
    """Decode a host's answer to the probe. Raises HostError if it is malformed."""
    try:
        return with_leases(replace(HostFacts.from_json(answer), seen=time.time()))
    except (ValueError, AttributeError) as error:
        what = f"malformed answer to the probe: {clean(str(error))[:100]}"
        raise HostError(
            host, what, "Check whether another version of disttui runs there; if not, do not trust the host."
        ) from None
