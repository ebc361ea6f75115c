"""What a viewer may ask a host's node program, and what it answers (docs/formats.md, "Frames").

A field that comes from a class whose name ends in `Maybe`, or of a type with `total=False`, may be absent.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from .files import Exit, LeaderPlace, RankStacks, Secrets, Spec

Op = Literal[
    "probe", "complete", "start", "lead", "mirror", "stop", "status", "stacks", "telemetry", "forget", "list", "read",
    "files", "fetch", "orphans",
]  # fmt: skip


class _RunMaybe(TypedDict, total=False):
    run_dir: str


class Run(_RunMaybe):
    """Which run is meant."""

    run: str


class Part(Run):
    """Which host's part of a run is meant."""

    node_rank: int


class ProbeRequest(TypedDict, total=False):
    workdir: str
    script: str | None
    module: str
    programs: list[str]
    python: str | None
    activate: str
    run_dir: str
    ports: list[int]
    gpus: bool


class CompleteRequest(TypedDict, total=False):
    path: str
    workdir: str


class StartRequest(TypedDict):
    spec: Spec
    secrets: Secrets


class LeadRequest(Part):
    leader: LeaderPlace


class _MirrorMaybe(TypedDict, total=False):
    have: dict[str, list[int]]
    """Name → generation, length, CRC-32 of the last bytes."""
    tail: int | None
    """Bytes at the end of every log to begin with."""


class MirrorRequest(Part, _MirrorMaybe):
    pass


class _StopMaybe(TypedDict, total=False):
    now: bool
    reason: str


class StopRequest(Part, _StopMaybe):
    pass


class _StatusMaybe(TypedDict, total=False):
    settle: bool


class StatusRequest(Part, _StatusMaybe):
    pass


class TelemetryStream(TypedDict, total=False):
    interval: float
    processes: bool | int
    """Whether to tell of processes, or of how many."""


class ListRuns(TypedDict, total=False):
    run_dir: str
    run: str
    """Of this one only."""


class ReadRequest(Part):
    name: str
    offset: int
    length: int


class FetchRequest(Part):
    name: str
    offset: int


class OrphansRequest(TypedDict, total=False):
    end: bool
    run: str
    """Of this one only."""
    run_dirs: list[str]
    """Further ones than the default."""


class Started(TypedDict):
    dir: str
    pid: int
    already: bool
    gang: LeaderPlace | None


class Stopped(TypedDict):
    stopped: bool
    state: str | None


class _Waits(TypedDict, total=False):
    waits: str | None
    """What a stop waits for."""


class Alive(_Waits):
    alive: bool
    pid: int | None
    exit: Exit | None


class Completed(TypedDict):
    names: list[str]
    more: bool


class StacksAnswer(TypedDict):
    ranks: dict[str, RankStacks]


class Listed(TypedDict):
    runs: list[dict[str, object]]
    """Summaries, with values as the files have them."""


class File(TypedDict):
    name: str
    size: int
    mtime: float


class FilesAnswer(TypedDict):
    files: list[File]
    left_out: list[str]
    """Outputs that cannot be fetched, and why."""


class ReadUpTo(TypedDict):
    end: int


class Fetched(TypedDict):
    size: int
    sha256: str


class Orphan(TypedDict):
    """A process of a run that has ended, or lost its supervisor."""

    run: str
    node_rank: int
    attempt: int
    pid: int
    user: str
    command: str
    why: str
    age: float
    rss: int
    ports: list[int]
    gpu_memory: int | None
    ended: bool


class OrphansAnswer(TypedDict):
    found: list[Orphan]


class Nothing(TypedDict):
    """Of a request that only does something, and of a stream."""
