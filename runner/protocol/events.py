"""The records of events.jsonl: one type for each kind of event (docs/formats.md, "events.jsonl").

A field that a kind inherits from a class whose name ends in `Maybe` may be absent; every other is there.
"""

from __future__ import annotations

from typing import Literal, NoReturn, TypedDict, Union

from .cause import Cause

Level = Literal["info", "warning", "error"]
AlarmKind = Literal["gpu memory", "memory", "throttle", "disk", "swap", "foreign gpu", "watch"]
"""memory: it will be full within the hour; watch: a rule of the profile has fired."""
State = Literal["finished", "failed", "stopped", "lost"]
"""How a run has ended."""


class _Event(TypedDict):
    t: float
    """Unix time by the clock of the host that records it."""


class _OfAttempt(_Event):
    attempt: int


class _OverMaybe(TypedDict, total=False):
    over: bool
    """Whether it marks the end of a condition whose beginning an earlier event of this kind has marked."""


class _SupervisorMaybe(TypedDict, total=False):
    pid: int
    hostname: str
    boot_id: str
    python: str


class SupervisorBegins(_Event, _SupervisorMaybe):
    e: Literal["supervisor"]


class _ListenMaybe(TypedDict, total=False):
    port: int
    addresses: list[str]


class Listen(_Event, _ListenMaybe):
    e: Literal["listen"]


class Join(_Event):
    e: Literal["join"]
    node: int


class Waiting(_Event):
    e: Literal["waiting"]
    missing: list[int]


class Dial(_Event):
    e: Literal["dial"]
    address: str
    port: int
    problem: str


class Clock(_Event):
    e: Literal["clock"]
    node: int
    offset: float
    """Seconds that its clock is ahead of the leader's."""


class AttemptBegins(_OfAttempt):
    e: Literal["attempt"]
    master: str
    port: int
    world_size: int


class _LaunchMaybe(TypedDict, total=False):
    pid: int
    command: list[str]
    interface: str | None


class LaunchBegins(_OfAttempt, _LaunchMaybe):
    e: Literal["launch"]


class _RankMaybe(TypedDict, total=False):
    local_rank: int | None
    pid: int | None
    world_size: int | None


class RankBegins(_OfAttempt, _RankMaybe):
    e: Literal["rank"]
    rank: int


class _GroupMaybe(TypedDict, total=False):
    world_size: int | None
    backend: str | None


class Group(_OfAttempt, _GroupMaybe):
    e: Literal["group"]
    rank: int


class _UngroupedMaybe(_OverMaybe, total=False):
    unknown: bool
    """Whether it could not be checked."""


class Ungrouped(_OfAttempt, _UngroupedMaybe):
    e: Literal["ungrouped"]


class FirstStep(_OfAttempt):
    e: Literal["step"]


class _ErrorMaybe(TypedDict, total=False):
    rank: int
    type: str | None
    message: str | None
    traceback: str | None
    at: float


class Error(_OfAttempt, _ErrorMaybe):
    e: Literal["error"]


class OomEvidence(TypedDict, total=False):
    """Evidence of the kernel's out-of-memory killer."""

    group: int
    """Processes that it has killed meanwhile in the run's control group."""
    machine: int
    """The same on the machine."""
    kernel: str
    """The kernel's line."""
    limit: int
    """Bytes."""


class _DeathMaybe(TypedDict, total=False):
    rank: int
    pid: int | None
    code: int | None
    at: float
    said: str
    grace: float
    oom: OomEvidence


class Death(_OfAttempt, _DeathMaybe):
    e: Literal["death"]


class _LauncherMaybe(TypedDict, total=False):
    code: int | None
    error: str | None


class LauncherEnds(_OfAttempt, _LauncherMaybe):
    e: Literal["launcher"]


class Failed(_OfAttempt):
    e: Literal["failed"]
    cause: Cause | None


class _HostMaybe(TypedDict, total=False):
    last: float | None
    """Unix time of its last sign of life."""


class HostSeen(_Event, _HostMaybe):
    e: Literal["host"]
    node: int
    state: str
    """seen, not seen or lost."""


class _StoppingMaybe(TypedDict, total=False):
    reason: str
    """user, failure (another rank or host failed), host lost, leader lost, join timeout, restart or signal."""
    now: bool


class Stopping(_OfAttempt, _StoppingMaybe):
    e: Literal["stopping"]


class LeftProcess(TypedDict, total=False):
    """A process that could not be ended."""

    pid: int
    command: str
    why: str
    """Why it survives SIGKILL; empty: unknown."""


class _PortHeld(TypedDict):
    port: int


class PortHeld(_PortHeld, total=False):
    """A master port that is still in use, and the process that listens on it, if known."""

    pid: int | None
    command: str


class _MemoryHeld(TypedDict):
    pid: int


class MemoryHeld(_MemoryHeld, total=False):
    """Memory of a GPU that is still held for a process that has ended."""

    bytes: int


class Held(TypedDict, total=False):
    """What is still held for processes that have ended."""

    port: PortHeld
    gpu_memory: list[MemoryHeld]


class Left(_Event, Held):
    e: Literal["left"]
    processes: list[LeftProcess]


class _NoteMaybe(TypedDict, total=False):
    level: Level
    stop: bool
    """Whether it describes what a stop waits for."""


IN_LINE = "in line: "
"""How the leader's notes begin that say what a queued run waits for."""


class Note(_Event, _NoteMaybe):
    e: Literal["note"]
    text: str


class _StallMaybe(_OverMaybe, total=False):
    attempt: int
    since: float
    pace: float | None
    """Seconds between signs of life."""
    silent: dict[str, float]
    """Rank → seconds."""
    stacks: str
    """The file that every host then writes."""


class Stall(_Event, _StallMaybe):
    e: Literal["stall"]


class _StragglerMaybe(_OverMaybe, total=False):
    attempt: int
    median: float
    others: float
    shows: list[str]


class Straggler(_Event, _StragglerMaybe):
    e: Literal["straggler"]
    rank: int


class _AlarmMaybe(_OverMaybe, total=False):
    kind: AlarmKind
    value: float | None


class Alarm(_Event, _AlarmMaybe):
    e: Literal["alarm"]
    text: str


class _VerdictMaybe(TypedDict, total=False):
    state: State
    code: int
    attempt: int
    cause: Cause | None


class Verdict(_Event, _VerdictMaybe):
    e: Literal["verdict"]


Event = Union[
    SupervisorBegins, Listen, Join, Waiting, Dial, Clock, AttemptBegins, LaunchBegins, RankBegins, Group, Ungrouped,
    FirstStep, Error, Death, LauncherEnds, Failed, HostSeen, Stopping, Left, Note, Stall, Straggler, Alarm, Verdict,
]  # fmt: skip
"""Every `match` over the kinds ends with `raise Unhandled(event)`: mypy reports the place where a kind is missing."""


class Unhandled(AssertionError):
    """Marks code that no value can reach: while one can, mypy refuses the call and names its type."""

    def __init__(self, value: NoReturn) -> None:
        super().__init__(f"not handled: {value!r}")
