"""The files of a run's folder except its JSON lines (docs/formats.md, "The run directory")."""

from __future__ import annotations

from typing import Literal, Mapping, TypedDict

from .cause import Cause
from .containers import ContainerSpec
from .events import Held, LeftProcess, State
from .facts import Code
from .leases import LeaseText
from .watch import WatchRule

LauncherPart = Literal["torchrun", "accelerate-launch", "mpirun", "mpirun-per-host", "deepspeed"]
"""The parts of the node program that run a launcher."""


class Target(TypedDict):
    """What every rank runs; for a `command`, `value` is its first word."""

    kind: Literal["builtin", "script", "module", "command"]
    value: str
    args: list[str]


class Launch(TypedDict):
    """How a run is launched. Seconds."""

    ports: list[int]
    """The first and the last port."""
    join_timeout: float
    host_timeout: float
    rejoin_timeout: float
    restarts: int
    resume_args: list[str]
    grace: float
    instrument: bool
    log_limit: int | None
    preload: list[str]


class LeaderPlace(TypedDict):
    """Where followers connect to the leader."""

    port: int
    addresses: list[str]


class PlannedSpec(TypedDict):
    """A host's part of a run according to the plan."""

    disttui: int
    run: str
    node_rank: int
    hosts: list[str]
    nproc: list[int]
    run_dir: str
    workdir: str
    python: str
    activate: str
    wrap: list[str]
    container: ContainerSpec | None
    """The container that the launcher runs in; None in a run of an earlier version."""
    target: Target
    env: dict[str, str]
    launcher: LauncherPart
    launcher_args: list[str]
    gpus: list[int] | None
    quota: int | None
    """The most GPUs of this host that the run's user may have in leases."""
    backend: str
    precision: str
    launch: Launch
    master: str | None
    interface: str | None
    leader: LeaderPlace | None
    metrics_pattern: str | None
    watch: list[WatchRule]
    """The rules to apply while the run lasts, at most one of each name; empty in a run of an earlier version."""
    outputs: list[str]
    """The files of the job's folder that `pull` copies."""
    profile: Mapping[str, object]


class Queue(TypedDict):
    """How a run is queued."""

    round: int
    order: float
    """Its place in the round, smallest first."""
    any_of: list[int] | None
    """The GPUs that it chooses from at its turn, as many as the spec's `gpus` has; None: it takes those."""
    lasts: bool
    """Whether it survives a reboot: it has one host, and no secrets that only its viewer has."""
    turns: list[int]
    """Node ranks in the order in which all runs take these hosts."""
    code: Code | None
    """The job's code on this host when the run was queued."""


class _SpecMaybe(TypedDict, total=False):
    resume_from: str | None
    """The folder with the checkpoints of the run that this one continues."""
    ignore_leases: bool
    """Whether to start even if others have leased what the run uses."""
    queue: Queue | None
    """Set if the run waits for what it uses."""
    tree: str | None
    """The SHA-256 of the manifest of its code; `workdir` is the run's own copy."""


class Spec(PlannedSpec, _SpecMaybe):
    """spec.json: all that a host needs to know about a run, without secrets."""

    by: str
    started: float
    version: str


class NodeSpec(Spec, total=False):
    """spec.json on a node of a Slurm job, once that runs: `hosts` are the names of the job's nodes."""

    job: str


class NotifyTarget(TypedDict):
    """A destination of notifications."""

    kind: Literal["webhook", "slack", "discord", "ntfy", "email"]
    url: str
    events: list[str]


class Secrets(TypedDict, total=False):
    """Held in memory only."""

    key: str
    """64 hexadecimal digits, which authenticate the gang."""
    env: dict[str, str]
    notify: list[NotifyTarget]


class GivenLease(TypedDict):
    """A lease that the supervisor inherits: its descriptor, and its file."""

    fd: int
    path: str
    text: LeaseText


class Given(TypedDict):
    """The arguments of a supervisor besides its folder."""

    secrets: Secrets
    train_zip: str | None
    lease: GivenLease | None
    unleased: str
    """Why there is no lease."""


class Exit(TypedDict, total=False):
    """exit.json: how a host's part of the run ended."""

    t: float
    state: State
    code: int
    cause: Cause | None
    attempt: int
    left: list[int]
    """Processes that could not be ended."""
    processes: list[LeftProcess]
    """The first of these processes, with what is known of each."""
    held: Held
    unconfirmed: list[int]
    """On the leader of a run that has not finished: node ranks that have not confirmed the end of their ranks."""


class StackFrame(TypedDict, total=False):
    file: str
    line: int
    function: str
    text: str


class Thread(TypedDict, total=False):
    name: str
    main: bool
    frames: list[StackFrame]
    """The frames, innermost last."""


class ChildStack(TypedDict, total=False):
    """A process started by a rank: what faulthandler printed of a forked one, otherwise what the kernel reports."""

    pid: int
    command: str
    text: str
    note: str


class GroupStatus(TypedDict, total=False):
    """A rank's progress in a process group: gloo writes these numbers as texts, NCCL as numbers."""

    last_enqueued_collective: object
    last_completed_collective: object


class CollectiveEntry(TypedDict, total=False):
    pg_id: int
    """The rank's own number of the process group."""
    process_group: list[str]
    """Its name, which all its ranks share, and its description."""
    collective_seq_id: int
    profiling_name: str
    input_sizes: object
    time_created_ns: int
    is_p2p: bool


class FlightRecorder(TypedDict, total=False):
    """The part of torch's flight recorder that is read (torch/csrc/distributed/c10d/FlightRecorder.hpp)."""

    pg_status: dict[str, GroupStatus]
    entries: list[CollectiveEntry]


class RankStacks(TypedDict, total=False):
    """The stacks of a rank."""

    threads: list[Thread]
    recorder: dict[str, FlightRecorder]
    """Flight recorders by backend."""
    text: str
    """Output of faulthandler."""
    note: str
    state: str
    """stopped, kernel or ended."""
    t: float
    pid: int
    silent: float
    step: float
    """The newest step, if the rank has reported one."""
    stepped: float
    """Seconds for which the rank has been at that step."""
    moved: bool
    children: list[ChildStack]
    """Child processes of a rank that makes no progress outside collectives."""


class _Stacks(TypedDict):
    t: float


class Stacks(_Stacks, total=False):
    """stacks-<n>.json: where the ranks of a host were at the n-th stall."""

    attempt: int
    ranks: dict[str, RankStacks]


class LauncherFailure(TypedDict):
    """A failed rank as reported by its launcher. `local_rank` counts the host's ranks in order."""

    local_rank: int
    code: int | None
    pid: int | None
    t: float


class LauncherEnd(TypedDict):
    """launcher.json: how the launcher ended."""

    code: int
    error: str | None
    signal: int | None
    port_in_use: bool
    failures: list[LauncherFailure]
