"""The requests of a viewer to a host's node program, and the answers (docs/formats.md, "Frames").

A field from a class whose name ends in `Maybe`, or of a type with `total=False`, may be absent.
"""

from __future__ import annotations

import struct
from typing import Literal, TypedDict

from .facts import Gpu
from .files import Exit, LeaderPlace, NotifyTarget, RankStacks, Secrets, Spec
from .leases import Lease
from .slurm import Batch

Op = Literal[
    "probe", "complete", "start", "submit", "lead", "mirror", "stop", "status", "stacks", "telemetry", "forget", "list",
    "read", "files", "fetch", "orphans", "code", "leases", "lease", "release", "move", "notify",
    "sync", "put", "offer", "gather", "stage", "environment", "setup",
    "inspect", "listen", "dial",
]  # fmt: skip

OBJECT = struct.Struct(">32sQQ")
"""What stands before each object in the stream of `put`: SHA-256, bytes of the whole, and from which of them on it
follows."""


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
    command: list[str]
    """Words among which a file of the job is searched for."""
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


class _DataMaybe(Run, total=False):
    data: Literal["file", "folder"]
    """The copy is not a run's but data, kept until the source changes; `file`: the tree's only one, called as `to`."""


class SyncRequest(_DataMaybe):
    """Gives a run a copy of a tree; of `put`, the objects follow as `D` frames, an empty one at the end."""

    tree: str
    size: int
    """Bytes of its manifest."""
    to: str
    """Where the copy is made."""


class OfferRequest(SyncRequest):
    """Serves the tree to other hosts, also what of it is still arriving; one event, a `LeaderPlace`, says where."""

    key: str
    """A certificate and its private key as PEM, the same for all hosts of an upload: who has it may connect."""
    ports: list[int]
    """First and last; another one where none of them is free."""
    address: str | None
    """By which others reach this host; a loopback one: nothing listens on the network."""


class GatherRequest(SyncRequest):
    """Fetches what is missing from other hosts; answered as `sync`."""

    key: str
    peers: list[LeaderPlace]
    """Whom to ask, one after the other."""


class GatherProgress(TypedDict):
    """An event of `gather`: files and bytes that have arrived, of those that were missing."""

    files: int
    of: int
    done: int
    total: int


class TreeAnswer(TypedDict):
    """What a host lacks of a tree."""

    store: str
    """The name of its store: hosts with the same one share it."""
    manifest: bool
    """Whether it has the manifest; without it, it cannot say what else is missing."""
    missing: list[list[int]]
    """[first, count] of the tree's objects, in the manifest's order."""
    begun: dict[str, int]
    """Of missing objects, by number: bytes that arrived before."""
    placed: bool
    """Whether the run has its copy."""


class StageRequest(TypedDict):
    """Takes data into the objects beside its destination; a stream of `{"line": text}`."""

    source: str
    """A path of the host, or an address."""
    to: str
    size: int
    """Bytes that it takes, for sources that do not say; 0: not known."""
    sha256: str
    """Of the file; empty: any content."""
    fetch: bool
    """Whether to fetch it; else only what was fetched before is found."""
    env: dict[str, str]
    """Variables of the programs that fetch it."""


class Staged(TypedDict):
    tree: str
    """Its name; empty: not fetched yet."""
    manifest: str
    """Compressed (zlib), as base64."""
    file: bool
    """Whether it is a file, not a folder."""


class EnvironmentRequest(TypedDict):
    """Asks for the environment of a requirements or lock file; a stream of `{"line": text}` while it is built."""

    files: dict[str, str]
    """Name → text; the first is the one that says how it is built."""
    python: str
    """The interpreter that it is for."""
    inherit: bool
    wheels: str
    """The folder with its wheels on the host; empty: from the package index."""
    sent: str
    """The same for wheels that replace an index which the host cannot reach; empty: there are none."""
    build: bool
    """Whether to build it; else only one that exists is found."""
    env: dict[str, str]
    """Variables of the commands."""


class Offline(TypedDict):
    """What wheels for a host without a package index must fit."""

    tag: str
    """Of its Python, such as 3.11."""
    machine: str
    libc: str
    """Such as glibc-2.35; `-`: another one."""
    torch: str
    """The version that it inherits; empty: none."""
    why: str
    """What has failed."""


class _OfflineMaybe(TypedDict, total=False):
    offline: Offline


class EnvironmentAnswer(_OfflineMaybe):
    python: str
    """Its interpreter; empty: not built yet."""
    packages: dict[str, str]
    """Name → version of all packages that it sees."""


class SetupRequest(TypedDict):
    """Runs the commands that come before a run; a stream of `{"line": text}`."""

    spec: Spec
    commands: list[str]
    secrets: dict[str, str]
    """Variables of the commands that are not in the spec."""


class SetupOrder(SetupRequest):
    """The same, to the process that runs them."""

    folder: str
    """The run's."""


class SetUp(TypedDict):
    ran: bool
    """False: they have run before."""


class ShellRequest(Part):
    """The word of `shell`: a rank's place, or a folder where `run` is empty."""

    rank: int
    workdir: str
    activate: str


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


class NotifyRequest(TypedDict):
    """Send a test notification from this host."""

    host: str
    """The host's name in it."""
    targets: list[NotifyTarget]


class Notified(TypedDict):
    problems: dict[str, str]
    """Kind of each target → why it did not take it; empty: it did."""


class LeadRequest(Part):
    leader: LeaderPlace


class MirrorRequest(Part, total=False):
    have: dict[str, list[int]]
    """Name → generation, length, CRC-32 of the last bytes."""
    tail: int | None
    """Bytes at the end of every log where mirroring begins."""
    settle: bool
    """Whether to write the end of a job of Slurm that has ended without one."""


class StopRequest(Part, total=False):
    now: bool
    reason: str


class MoveRequest(Part):
    """To node rank 0: take another place in the queue, on all hosts."""

    round: int
    order: float


class StatusRequest(Part, total=False):
    settle: bool


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
    """Until it expires; counted by the host, whose clock may differ."""
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
