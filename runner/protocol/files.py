"""The files of a run's folder but for its JSON lines (docs/formats.md, "The run directory")."""

from __future__ import annotations

from typing import Literal, Mapping, TypedDict

from .cause import Cause
from .events import Held, State


class Target(TypedDict):
    """What every rank runs; for a `command`, `value` is its first word."""

    kind: Literal["builtin", "script", "module", "command"]
    value: str
    args: list[str]


class Launch(TypedDict):
    """How a run is launched. Seconds."""

    ports: list[int]
    """The first and the last."""
    join_timeout: float
    host_timeout: float
    rejoin_timeout: float
    restarts: int
    resume_args: list[str]
    grace: float
    instrument: bool
    log_limit: int | None


class LeaderPlace(TypedDict):
    """Where the leader takes its followers."""

    port: int
    addresses: list[str]


class PlannedSpec(TypedDict):
    """What the plan says of a host's part in a run."""

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
    target: Target
    env: dict[str, str]
    launcher_args: list[str]
    gpus: list[int] | None
    backend: str
    precision: str
    launch: Launch
    master: str | None
    interface: str | None
    leader: LeaderPlace | None
    metrics_pattern: str | None
    outputs: list[str]
    """What `pull` copies of the job's folder."""
    profile: Mapping[str, object]


class _SpecMaybe(TypedDict, total=False):
    resume_from: str | None
    """The folder with the checkpoints of the run that this one goes on from."""


class Spec(PlannedSpec, _SpecMaybe):
    """spec.json: all that a host needs to know of a run, without secrets."""

    by: str
    started: float
    version: str


class Secrets(TypedDict, total=False):
    """Held in memory only."""

    key: str
    """64 hexadecimal digits, which authenticate the gang."""
    env: dict[str, str]


class Given(TypedDict):
    """What a supervisor is started with besides its folder."""

    secrets: Secrets
    train_zip: str | None


class Exit(TypedDict, total=False):
    """exit.json: how a host's part of the run has ended."""

    t: float
    state: State
    code: int
    cause: Cause | None
    attempt: int
    left: list[int]
    """Processes that could not be ended."""
    held: Held


class StackFrame(TypedDict, total=False):
    file: str
    line: int
    function: str
    text: str


class Thread(TypedDict, total=False):
    name: str
    main: bool
    frames: list[StackFrame]
    """The innermost last."""


class RankStacks(TypedDict, total=False):
    """Where a rank is."""

    threads: list[Thread]
    recorder: dict[str, object]
    """Backend → what its flight recorder tells."""
    text: str
    """faulthandler's words."""
    note: str
    state: str
    """stopped, kernel or ended."""
    t: float
    pid: int
    silent: float
    moved: bool


class _Stacks(TypedDict):
    t: float


class Stacks(_Stacks, total=False):
    """stacks-<n>.json: where the ranks of a host were at the n-th stall."""

    attempt: int
    ranks: dict[str, RankStacks]


class Ready(TypedDict, total=False):
    """launcher.ready: torch is imported."""

    t: float
    torch: str


class LauncherFailure(TypedDict):
    """A rank that torchrun found failed."""

    local_rank: int
    code: int | None
    pid: int | None
    t: float


class LauncherEnd(TypedDict):
    """launcher.json: how torchrun has ended."""

    code: int
    error: str | None
    signal: int | None
    port_in_use: bool
    failures: list[LauncherFailure]


class Growth(TypedDict):
    """A record of growth.jsonl: bytes of each rank's log."""

    t: float
    sizes: dict[str, int]
