"""The requests of a viewer to a host's node program, and the answers (docs/formats.md, "Frames").

A field from a class whose name ends in `Maybe`, or of a type with `total=False`, may be absent.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from .facts import Gpu
from .files import Exit, LeaderPlace, RankStacks, Secrets, Spec
from .leases import Lease
from .slurm import Batch

Op = Literal[
    "probe", "complete", "start", "submit", "lead", "mirror", "stop", "status", "stacks", "telemetry", "forget", "list",
    "read", "files", "fetch", "orphans", "code", "leases", "lease", "release", "move",
]  # fmt: skip


class _RunMaybe(TypedDict, total=False):
    run_dir: str


class Run(_RunMaybe):
    """Names a run."""

    run: str


class Part(Run):
    """Names one host's part of a run."""

    node_rank: int


class ProbeRequest(TypedDict, total=False):
    workdir: str
    script: str | None
    module: str
    programs: list[str]
    package: str
    """That the launcher is in."""
    version_of: str
    """The launcher's program that is asked for its `--version`."""
    python: str | None
    activate: str
    run_dir: str
    ports: list[int]
    gpus: bool


class CompleteRequest(TypedDict, total=False):
    path: str
    workdir: str


class CodeRequest(TypedDict, total=False):
    workdir: str
    script: str | None


class CodeState(TypedDict):
    """What is checked out where the job's code lies, and how the files differ from it."""

    folder: str
    head: str | None
    """The commit; None: in no git repository."""
    diff: str
    """Of the files below `folder` to the commit, `limits.CODE_DIFF` characters at most."""
    cut: bool
    untracked: list[str]
    """Files below `folder` that git does not know and does not ignore, `limits.CODE_UNTRACKED` at most."""


class StartRequest(TypedDict):
    spec: Spec
    secrets: Secrets


class SubmitRequest(TypedDict):
    spec: Spec
    """Of node rank 0."""
    launcher_args: list[list[str]]
    """Of every node rank: besides the node rank, what specs differ in."""
    secrets: Secrets
    batch: Batch


class LeadRequest(Part):
    leader: LeaderPlace


class _MirrorMaybe(TypedDict, total=False):
    have: dict[str, list[int]]
    """Name → generation, length, CRC-32 of the last bytes."""
    tail: int | None
    """Bytes at the end of every log where mirroring begins."""
    settle: bool
    """Whether to write the end of a job of Slurm that has ended without one."""


class MirrorRequest(Part, _MirrorMaybe):
    pass


class _StopMaybe(TypedDict, total=False):
    now: bool
    reason: str


class StopRequest(Part, _StopMaybe):
    pass


class MoveRequest(Part):
    """To node rank 0: take another place in the line, on all hosts."""

    priority: int
    order: float


class _StatusMaybe(TypedDict, total=False):
    settle: bool


class StatusRequest(Part, _StatusMaybe):
    pass


class TelemetryStream(TypedDict, total=False):
    interval: float
    processes: bool | int
    """Whether to include processes, or how many."""


class ListRuns(TypedDict, total=False):
    run_dir: str
    run: str
    """Only this one."""


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
    """Only this one."""
    run_dirs: list[str]
    """In addition to the default."""


class LeasesRequest(TypedDict, total=False):
    gpus: bool
    """Whether to ask the driver who computes on them."""


class _LeaseMaybe(TypedDict, total=False):
    run: str
    """Taken for a run that starts next; absent: by hand."""
    node_rank: int
    seconds: float | None
    """Until it ends by itself; counted by the host, whose clock may differ."""
    note: str
    quota: int | None
    """Of the run, as in its spec."""


class LeaseRequest(_LeaseMaybe):
    gpus: list[int] | None
    by: str


class ReleaseRequest(TypedDict, total=False):
    gpus: list[int] | None
    """Leases by hand of any of these; absent: all."""
    run: str
    """What was taken for a run that does not start."""
    lease: str
    """Of those by hand only this one, as `Leased` names it."""


class LeasesAnswer(TypedDict):
    leases: list[Lease]
    gpus: list[Gpu]
    problem: str
    """What makes the list incomplete."""
    time: float
    uid: int


class Leased(TypedDict):
    until: float | None
    lease: str
    """The name of its file; empty for a run's."""


class Released(TypedDict):
    leases: list[Lease]


class Started(TypedDict):
    dir: str
    pid: int
    already: bool
    gang: LeaderPlace | None


class Submitted(TypedDict):
    job: str


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
    inode: int


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
    """The answer of a request without a result, and of a stream."""
