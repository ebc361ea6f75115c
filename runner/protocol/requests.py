"""A viewer's requests to a host's node program, and the answers (docs/formats.md, "Frames").

Fields of a class whose name ends in `Maybe`, or of a type with `total=False`, may be absent.
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
"""The header of each object in the stream of `put`: SHA-256, total bytes, and the offset from which its content
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
    """Words that are searched for a file of the job."""
    module: str
    programs: list[str]
    package: str
    """The package that contains the launcher."""
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
    """What is checked out in the folder of the job's code, and how the files differ from it."""

    folder: str
    head: str | None
    """The commit; None if the folder is not in a git repository."""
    diff: str
    """Differences of the files below `folder` from the commit, `limits.CODE_DIFF` characters at most."""
    cut: bool
    untracked: list[str]
    """Files below `folder` that git neither tracks nor ignores, `limits.CODE_UNTRACKED` at most."""


class _DataMaybe(Run, total=False):
    data: Literal["file", "folder"]
    """Set if the copy is data, kept until the source changes; `file`: the tree's only file, with the name in `to`."""


class SyncRequest(_DataMaybe):
    """Gives a run a copy of a tree; for `put`, the objects follow as `D` frames, with an empty one at the end."""

    tree: str
    size: int
    """Bytes of its manifest."""
    to: str
    """Where the copy is made."""


class OfferRequest(SyncRequest):
    """Serves the tree to other hosts, including what is still arriving; one event, a `LeaderPlace`, tells where."""

    key: str
    """A certificate and its private key as PEM, the same for all hosts of an upload; its holders may connect."""
    ports: list[int]
    """First and last port; another one is used if none of them is free."""
    address: str | None
    """The address at which others reach this host; if it is loopback, nothing listens on the network."""


class GatherRequest(SyncRequest):
    """Fetches what is missing from other hosts; answered like `sync`."""

    key: str
    peers: list[LeaderPlace]
    """The hosts to ask, one after the other."""


class GatherProgress(TypedDict):
    """An event of `gather`: files and bytes that have arrived, out of those that were missing."""

    files: int
    of: int
    done: int
    total: int


class TreeAnswer(TypedDict):
    """What a host lacks of a tree."""

    store: str
    """The name of the host's store: hosts with the same one share it."""
    manifest: bool
    """Whether the host has the manifest; without it, it cannot tell what else is missing."""
    missing: list[list[int]]
    """[first, count] of the tree's objects, in the manifest's order."""
    begun: dict[str, int]
    """Number of a missing object → bytes that arrived before."""
    placed: bool
    """Whether the run has its copy."""


class StageRequest(TypedDict):
    """Copies data into the objects next to its destination; a stream of `{"line": text}`."""

    source: str
    """A path on the host, or an address."""
    to: str
    size: int
    """Size in bytes, for sources that do not report it; 0 if not known."""
    sha256: str
    """The file's hash; "" accepts any content."""
    fetch: bool
    """Whether to fetch it; otherwise only what was fetched before is found."""
    env: dict[str, str]
    """Variables for the programs that fetch it."""


class Staged(TypedDict):
    tree: str
    """The tree's name; "" if not fetched yet."""
    manifest: str
    """The manifest, compressed (zlib) and base64-encoded."""
    file: bool
    """Whether the tree is a single file, not a folder."""


class EnvironmentRequest(TypedDict):
    """Requests the environment of a requirements or lock file; a stream of `{"line": text}` while it is built."""

    files: dict[str, str]
    """Name → text; the first file determines how the environment is built."""
    python: str
    """The interpreter to build it with."""
    inherit: bool
    wheels: str
    """The folder with its wheels on the host; "" uses the package index."""
    sent: str
    """The folder with wheels that replace a package index the host cannot reach; "" if there are none."""
    build: bool
    """Whether to build it; otherwise only an existing one is found."""
    env: dict[str, str]
    """Variables for the commands."""


class Offline(TypedDict):
    """Properties that wheels for a host without a package index must match."""

    tag: str
    """The version of its Python, such as 3.11."""
    machine: str
    libc: str
    """The C library, such as glibc-2.35; `-` for others."""
    torch: str
    """The torch version that it inherits; "" if none."""
    why: str
    """What failed."""


class _OfflineMaybe(TypedDict, total=False):
    offline: Offline


class EnvironmentAnswer(_OfflineMaybe):
    python: str
    """The environment's interpreter; "" if not built yet."""
    packages: dict[str, str]
    """Name → version of all packages visible in it."""


class SetupRequest(TypedDict):
    """Runs the commands that precede a run; a stream of `{"line": text}`."""

    spec: Spec
    commands: list[str]
    secrets: dict[str, str]
    """Variables for the commands that are not in the spec."""
    variables: dict[str, str]
    """The profile's variables, with references as written: if they change, the commands run again."""


class SetupOrder(SetupRequest):
    """A SetupRequest for the process that runs the commands."""

    folder: str
    """The run's folder."""


class SetUp(TypedDict):
    ran: bool
    """False if they have run before."""


class ShellRequest(Part):
    """The argument of `shell`: a rank's place, or only a folder if `run` is empty."""

    rank: int
    workdir: str
    activate: str


class StartRequest(TypedDict):
    spec: Spec
    secrets: Secrets


class SubmitRequest(TypedDict):
    spec: Spec
    """The spec of node rank 0."""
    launcher_args: list[list[str]]
    """Launcher arguments of every node rank: besides the node rank, the only difference between specs."""
    secrets: Secrets
    batch: Batch


class NotifyRequest(TypedDict):
    """Send a test notification from this host."""

    host: str
    """The host's name in the notification."""
    targets: list[NotifyTarget]


class Notified(TypedDict):
    problems: dict[str, str]
    """Kind of each target → why it failed, "" if it was delivered."""


class LeadRequest(Part):
    leader: LeaderPlace


class MirrorRequest(Part, total=False):
    have: dict[str, list[int]]
    """Name → generation, length, CRC-32 of the last bytes."""
    tail: int | None
    """Bytes at the end of every log at which mirroring begins."""
    settle: bool
    """Whether to write the end of a Slurm job that has ended without one."""


class StopRequest(Part, total=False):
    now: bool
    reason: str


class MoveRequest(Part):
    """Sent to node rank 0: move the run to another place in the queue, on all hosts."""

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
    """Only this run."""


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
    """Only this run."""
    run_dirs: list[str]
    """Folders of runs besides the default."""


class LeasesRequest(TypedDict, total=False):
    gpus: bool
    """Whether to ask the driver for the processes on the GPUs."""


class _LeaseMaybe(TypedDict, total=False):
    run: str
    """The run that starts next; absent for a manual lease."""
    node_rank: int
    seconds: float | None
    """Seconds until it expires, counted by the host, whose clock may differ."""
    note: str
    quota: int | None
    """The run's quota, as in its spec."""


class LeaseRequest(_LeaseMaybe):
    gpus: list[int] | None
    by: str


class ReleaseRequest(TypedDict, total=False):
    gpus: list[int] | None
    """Manual leases of any of these GPUs; absent: all."""
    run: str
    """The run that does not start, whose lease is released."""
    lease: str
    """Release only this manual lease, named as in `Leased`."""


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
    """The name of the lease's file; "" for a run's."""


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
    """Summaries with values as in the files."""
    more: bool
    """Whether older runs are left out, since one answer cannot hold all."""


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
    """A process of a run that has ended, or has lost its supervisor."""

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
    """The answer to a request without a result, and to a stream."""
