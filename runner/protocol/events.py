"""The records of events.jsonl, one type per kind of event, and of ranks.jsonl (docs/formats.md).

Fields of a class with `total=False`, except `e`, may be absent, and so may those inherited from a class whose name ends
in `Maybe`. All others are present.
"""

from __future__ import annotations

from typing import Literal, NoReturn, TypedDict, Union

from .cause import Cause

Level = Literal["info", "warning", "error"]
AlarmKind = Literal["gpu memory", "memory", "throttle", "disk", "swap", "foreign gpu", "watch"]
"""memory: will be full within the hour; watch: a rule of the profile has fired."""
State = Literal["finished", "failed", "stopped", "lost"]
"""How a run ended."""


class _Event(TypedDict):
    t: float
    """Unix time on the clock of the host that records it."""


class _OfAttempt(_Event):
    attempt: int


class _OverMaybe(TypedDict, total=False):
    over: bool
    """Whether it marks the end of a condition whose beginning was marked by an earlier event of this kind."""


class SupervisorBegins(_Event, total=False):
    e: Literal["supervisor"]
    pid: int
    hostname: str
    boot_id: str
    python: str


class Listen(_Event, total=False):
    e: Literal["listen"]
    port: int
    addresses: list[str]


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
    """Seconds that the host's clock is ahead of the leader's."""


class AttemptBegins(_OfAttempt):
    e: Literal["attempt"]
    master: str
    port: int
    world_size: int


class LaunchBegins(_OfAttempt, total=False):
    e: Literal["launch"]
    pid: int
    command: list[str]
    interface: str | None


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


class Ungrouped(_OfAttempt, _OverMaybe, total=False):
    e: Literal["ungrouped"]
    unknown: bool
    """Whether it could not be checked."""


class FirstStep(_OfAttempt):
    e: Literal["step"]


class Error(_OfAttempt, total=False):
    e: Literal["error"]
    rank: int
    type: str | None
    message: str | None
    traceback: str | None
    at: float


class OomEvidence(TypedDict, total=False):
    """Evidence of the kernel's out-of-memory killer."""

    group: int
    """Processes killed in the run's control group since the previous check."""
    machine: int
    """Processes killed on the machine since the previous check."""
    kernel: str
    """The kernel's log line."""
    limit: int
    """Bytes."""


class Death(_OfAttempt, total=False):
    e: Literal["death"]
    rank: int
    pid: int | None
    code: int | None
    at: float
    said: str
    grace: float
    oom: OomEvidence


class LauncherEnds(_OfAttempt, total=False):
    e: Literal["launcher"]
    code: int | None
    error: str | None


class Failed(_OfAttempt):
    e: Literal["failed"]
    cause: Cause | None


class _HostMaybe(TypedDict, total=False):
    last: float | None
    """Unix time of the host's last sign of life."""


class HostSeen(_Event, _HostMaybe):
    e: Literal["host"]
    node: int
    state: str
    """seen, not seen or lost."""


class Stopping(_OfAttempt, total=False):
    e: Literal["stopping"]
    reason: str
    """user, failure (another rank or host failed), host lost, leader lost, join timeout, restart or signal."""
    now: bool


class LeftProcess(TypedDict, total=False):
    """A process that could not be ended."""

    pid: int
    command: str
    why: str
    """Why it survives SIGKILL; "" if unknown."""


class _PortHeld(TypedDict):
    port: int


class PortHeld(_PortHeld, total=False):
    """A master port that is still in use, and the process that listens on it, if known."""

    pid: int | None
    command: str


class _MemoryHeld(TypedDict):
    pid: int


class MemoryHeld(_MemoryHeld, total=False):
    """GPU memory that is still held for a process that has ended."""

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
    """Whether the note says what a stop waits for."""


QUEUED_FOR = "queued: "
"""The beginning of the leader's notes on what a queued run waits for."""


def queued_for(text: object) -> str | None:
    """What a queued run waits for according to a note's text; None if the note is about something else.

    Runs of earlier versions have a different prefix.
    """
    for prefix in (QUEUED_FOR, "in line: "):
        if isinstance(text, str) and text.startswith(prefix):
            return text[len(prefix) :]
    return None


class Note(_Event, _NoteMaybe):
    e: Literal["note"]
    text: str


class Stall(_Event, _OverMaybe, total=False):
    e: Literal["stall"]
    attempt: int
    since: float
    pace: float | None
    """Usual seconds between signs of life."""
    silent: dict[str, float]
    """Rank → seconds of silence."""
    stacks: str
    """The file that every host then writes."""
    steps: bool
    """Whether only a step counts as progress, whatever the ranks print."""


def stall_text(event: Stall, lasted: str = "") -> str:
    """Describe for how long no rank has shown progress.

    Args:
        lasted: The time up to now as shown to the user; "" to use the time up to the event.
    """
    done = "made a step" if event.get("steps") else "shown progress"
    return "no rank has %s for %s" % (done, lasted or "%.0f s" % silence(event))


def silence(event: Stall) -> float:
    """Seconds for which no rank had shown progress at the time of the event."""
    return min(event.get("silent", {}).values(), default=0.0)


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


class Verdict(_Event, total=False):
    e: Literal["verdict"]
    state: State
    code: int
    attempt: int
    cause: Cause | None


Event = Union[
    SupervisorBegins, Listen, Join, Waiting, Dial, Clock, AttemptBegins, LaunchBegins, RankBegins, Group, Ungrouped,
    FirstStep, Error, Death, LauncherEnds, Failed, HostSeen, Stopping, Left, Note, Stall, Straggler, Alarm, Verdict,
]  # fmt: skip
"""Every `match` over the kinds ends with `raise Unhandled(event)`: mypy reports where a kind is missing."""


class Unhandled(AssertionError):
    """Marks unreachable code: if a value can reach it, mypy rejects the call and names the value's type."""

    def __init__(self, value: NoReturn) -> None:
        super().__init__(f"not handled: {value!r}")


ReportKind = Literal["start", "group", "grouped", "error", "exit"]


class _Report(TypedDict):
    e: ReportKind
    rank: int
    t: float


class Report(_Report, total=False):
    """A rank's record; which of the other fields it has depends on `e`."""

    pid: int | None
    local_rank: int | None
    world_size: int | None
    start_time: int | None
    """Clock ticks since boot."""
    signal: int | None
    code: int | None
    type: str | None
    message: str | None
    traceback: str | None
    said: str | None
    backend: str | None
    door: str | None
