"""The fold: a run's files → one state. No I/O; used by live view, attach and replay.

Every file of every host is folded separately, and the state of the whole run is derived from those parts. So the
order in which the files of several hosts arrive cannot change the result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from disttui.runner.formatting import number
from disttui.runner.protocol import events
from disttui.runner.protocol.cause import Cause
from disttui.runner.protocol.events import (
    Alarm,
    Event,
    LeftProcess,
    Note,
    Report,
    Stall,
    Straggler,
    Unhandled,
    Verdict,
    queued_for,
)
from disttui.runner.protocol.files import Exit
from disttui.runner.protocol.limits import MOST_METRICS
from disttui.runner.protocol.metrics import NOT_FINITE, Metrics, updated
from disttui.runner.protocol.slurm import WAITING, Queued
from disttui.runner.protocol.telemetry import Telemetry
from disttui.runner.runs.contents import (
    Content,
    EventLine,
    ExitFile,
    MetricsLine,
    NewerEvent,
    OtherFile,
    ReportLine,
    StacksFile,
    TelemetryLine,
)
from disttui.runner.text import clean

_NAME = 255
_ATTEMPTS = 16
"""Attempts whose metrics are kept."""
_MOST, _MOST_LEFT = 4096, 256
"""Most entries of a kind that are kept of a host, and processes that it could not end: it may invent any number."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Lasting = TypeVar("_Lasting", Straggler, Alarm)
_AttemptEvent = (
    events.AttemptBegins | events.LaunchBegins | events.RankBegins | events.Group | events.Error | events.Death
    | events.Failed | events.Stopping | events.Ungrouped
)  # fmt: skip
"""The kinds of events that change an attempt."""


@dataclass(frozen=True)
class Attempt:
    """One attempt as reported by one host."""

    number: int
    master: str = ""
    port: int = 0
    world_size: int = 0
    launched: float | None = None
    """When the launcher was started, unix time on the host."""
    ranks: Mapping[int, events.RankBegins] = field(default_factory=dict)
    """Rank → its last `rank` event."""
    groups: Mapping[int, events.Group] = field(default_factory=dict)
    """Rank → its `group` event: the process group that it has joined."""
    errors: tuple[events.Error | events.Death, ...] = ()
    finished: Mapping[int, float] = field(default_factory=dict)
    """Rank → when its script ended with exit code 0, unix time on the host."""
    cause: Cause | None = None
    """The leader's cause of its failure, if another attempt followed."""
    stopping: events.Stopping | None = None
    ungrouped: bool = False
    """Whether its ranks work, or have ended with exit code 0, and none was seen in a process group."""
    unchecked: bool = False
    """Whether its ranks have ended with exit code 0, and it is unknown whether they were in a process group."""


@dataclass(frozen=True)
class Story:
    """The content of a host's events.jsonl."""

    attempts: Mapping[int, Attempt] = field(default_factory=dict)
    joined: frozenset[int] = frozenset()
    missing: tuple[int, ...] = ()
    dials: Mapping[str, str] = field(default_factory=dict)
    """Address of the leader → why it could not be reached."""
    offsets: Mapping[int, float] = field(default_factory=dict)
    """Node → its clock minus the leader's, in seconds."""
    unseen: Mapping[int, str] = field(default_factory=dict)
    """Node → "not seen" or "lost", as this host sees the gang."""
    notes: tuple[Note, ...] = ()
    in_line: bool = False
    """Whether the run waits on its hosts for what others have leased."""
    left: tuple[LeftProcess, ...] = ()
    stall: Stall | None = None
    """The current stall."""
    stood: Stall | None = None
    """The last stall of the newest attempt."""
    stood_until: float | None = None
    """When that stall ended, if it did."""
    slow: Mapping[int, Straggler] = field(default_factory=dict)
    """Rank → its event, while it is slow."""
    alarms: Mapping[str, Alarm] = field(default_factory=dict)
    """Text → alarm, while it is active."""
    verdict: Verdict | None = None
    began: float = 0.0
    """When the run began; if it was queued, when its turn came. 0 if neither is known."""
    last: float = 0.0


class Mark(NamedTuple):
    """A step that a rank made, and when, as unix time on its host."""

    t: float
    step: float


class Series(NamedTuple):
    """The content of a rank's metrics file, without its history."""

    first: Metrics = MappingProxyType({})
    latest: Metrics = MappingProxyType({})
    marks: tuple[Mark, ...] = ()
    """The first step above 0, then the two newest of those that came 1, 2, 4, 8 … times some first span after it."""
    pause: float = 0.0
    """The longest pause between two records in seconds; 0 if there were not two."""
    not_finite_since: float | None = None
    """The step since which the loss has not been finite; None if it is finite, or the step is unknown."""


@dataclass(frozen=True)
class HostState:
    """One host of the run."""

    node: int
    name: str
    nproc: int
    first: int = 0
    """Its lowest rank."""
    link: str = "connecting"
    """The viewer's link to it: connecting, starting, seen, not seen, ended, gone (the host, or its run folder)."""
    link_note: str = ""
    story: Story = Story()
    series: Mapping[tuple[int, int], Series] = field(default_factory=dict)
    """(attempt, rank) → metrics."""
    telemetry: Telemetry | None = None
    stacks: StacksFile | None = None
    """The newest stacks."""
    exit: Exit | None = None


@dataclass(frozen=True)
class RunState:
    """A run as known so far."""

    run: str
    hosts: tuple[HostState, ...]
    queued: Queued | None = None
    """The state of the run's Slurm job as last reported; None if it is not a Slurm job, or nothing was reported."""
    problem: str = ""
    """Why the run could not be started."""
    lost: str = ""
    """Why no host can report on it any more, if this viewer knows that from the beginning."""
    recorded: bool = False
    """Whether this is all that is known: no host is expected to add to it."""
    one_way: bool = False
    """Whether all hosts are reached through one that names them: a Slurm login node."""

    @property
    def waits(self) -> bool:
        """Whether it waits in Slurm's queue, or in its hosts' queue."""
        by_slurm = self.queued is not None and self.queued["state"] in WAITING
        return (by_slurm or self.hosts[0].story.in_line) and not self.exits

    @property
    def gathered(self) -> bool:
        """Whether all hosts have joined the leader."""
        return len(self.hosts[0].story.joined) == len(self.hosts)

    @property
    def world_size(self) -> int:
        """Number of processes on all hosts."""
        return sum(host.nproc for host in self.hosts)

    def host_of(self, rank: Any) -> str:
        """The name of the host that a rank runs on, "?" if there is no such rank."""
        first = 0
        for host in self.hosts:
            first += host.nproc
            if isinstance(rank, int) and 0 <= rank < first:
                return host.name
        return "?"

    @cached_property
    def attempt(self) -> int:
        """The number of the newest attempt, 0 before the first."""
        return max((number for host in self.hosts for number in host.story.attempts), default=0)

    @property
    def attempts(self) -> tuple[int, ...]:
        """The numbers of all attempts that a host has reported."""
        return tuple(sorted({number for host in self.hosts for number in host.story.attempts}))

    @property
    def exits(self) -> tuple[Exit, ...]:
        """The exit.json of every host that has ended."""
        return tuple(host.exit for host in self.hosts if host.exit is not None)

    @property
    def result(self) -> Exit | None:
        """How the run ended; None if it is running."""
        ends = {host.node: host.exit for host in self.hosts if host.exit is not None}
        gone = [host.node for host in self.hosts if host.link == "gone"]
        if not self.problem and not self.recorded and 0 not in ends and len({*ends, *gone}) < len(self.hosts):
            return None  # the leader is about to report
        return outcome(ends, len(self.hosts), self.problem, gone)

    @property
    def began(self) -> float:
        """When the run began, on the clock of its first host; 0 if it has not begun, and may be queued."""
        story = next((host.story for host in self.hosts if host.story.began), None)
        return 0.0 if story is None or (story.in_line and not story.attempts) else story.began

    @property
    def elapsed(self) -> float:
        """Seconds from its beginning to its end, or to its first host's newest record, on the leader's clock."""
        telemetry, result = self.hosts[0].telemetry, self.result
        end = max(self.hosts[0].story.last, telemetry["t"] if telemetry else 0.0)
        if result is not None and "t" in result:
            node = next((host.node for host in self.hosts if host.exit is result), 0)
            end = result["t"] - self.hosts[0].story.offsets.get(node, 0.0)
        return max(0.0, end - self.began) if self.began else 0.0

    def ranks(self) -> Iterator[tuple[HostState, int, Series]]:
        """Host, rank and metrics of every rank of the newest attempt that has metrics, in order of rank."""
        newest = self.attempt
        found = [
            (host, rank, series)
            for host in self.hosts
            for (attempt, rank), series in host.series.items()
            if attempt == newest
        ]
        return iter(sorted(found, key=lambda item: item[1]))

    @cached_property
    def metrics(self) -> Metrics:
        """The newest value of every metric, each from the lowest rank that has it."""
        merged: Metrics = {}
        for _, _, series in self.ranks():
            merged = {**series.latest, **merged}
        return merged

    @property
    def first_loss(self) -> float | None:
        """The first loss of the first attempt, from the lowest rank that has one."""
        found = sorted(
            (attempt, rank, float(loss))
            for host in self.hosts
            for (attempt, rank), series in host.series.items()
            if isinstance(loss := series.first.get("loss"), int | float)
        )
        return found[0][2] if found else None


def outcome(ends: Mapping[int, Exit], hosts: int, problem: str = "", gone: Collection[int] = ()) -> Exit | None:
    """How a run ended, from what is known of its hosts; None if it has not, or is still being stopped.

    Args:
        ends: Node rank → how the run ended there.
        hosts: The number of its hosts.
        problem: Why it could not be started: hosts that had started it already were stopped.
        gone: Node ranks that will not report an end.
    """
    if problem:
        return {"state": "failed", "code": 3, "attempt": 0, "cause": {"node": 0, "kind": "start", "message": problem}}
    stopped = next((end for end in ends.values() if end.get("state") == "stopped"), None)
    led = ends.get(0)
    if led is not None:
        # The leader may report a host as lost that was stopped.
        lost = (led.get("cause") or {}).get("kind") == "host lost"
        return stopped if lost and stopped else led
    if stopped and len({*ends, *gone}) < hosts:
        return None
    return max(ends.values(), key=exit_code, default=None)


def exit_code(end: Exit) -> int:
    """The code in a host's exit.json; 1 if it has none."""
    return end.get("code", 1)


def begin(run: str, names: tuple[str, ...], nproc: tuple[int, ...], *, one_way: bool = False) -> RunState:
    """The initial state of a run, before any record."""
    firsts = accumulate(nproc, initial=0)
    hosts = enumerate(zip(names, nproc, firsts, strict=False))
    states = tuple(HostState(node, name, count, first) for node, (name, count, first) in hosts)
    return RunState(run, states, one_way=one_way)


def link(state: RunState, node: int, kind: str, note: str = "") -> RunState:
    """Set the state of the viewer's link to a host to `kind`."""
    return _with_host(state, node, link=kind, link_note=note)


def queue_up(state: RunState, queued: Queued) -> RunState:
    """Note the state of the run's job in the queue."""
    return replace(state, queued=queued)


def fold(state: RunState, node: int, content: Content) -> RunState:
    """Apply one record of one host's file. Raises ValueError if it names a host that the run does not have."""
    host = state.hosts[node]
    match content:
        case MetricsLine(attempt, rank, metrics):  # first: nearly all records of a large run
            known = host.series.get((attempt, rank))
            if known is None and not host.first <= rank < host.first + host.nproc:
                raise ValueError("no rank of this host")
            series = {**host.series, (attempt, rank): _fold_metrics(known or Series(), metrics)}
            if known is None and len(attempts := sorted({number for number, _ in series})) > _ATTEMPTS:
                series = {key: one for key, one in series.items() if key[0] > attempts[0]}
            return _with_host(state, node, series=series)
        case EventLine(event):
            _check_nodes(event, len(state.hosts))
            return _with_host(state, node, story=_fold_event(host.story, event))
        case NewerEvent(t):
            story = replace(host.story, last=max(host.story.last, t), began=host.story.began or t)
            return _with_host(state, node, story=story)
        case TelemetryLine(telemetry):
            return _with_host(state, node, telemetry=telemetry)
        case ReportLine(attempt, report):
            return _with_host(state, node, story=_fold_report(host.story, attempt, report))
        case ExitFile(end):
            return _with_host(state, node, exit=end)
        case StacksFile():
            newer = host.stacks is None or content.stacks["t"] >= host.stacks.stacks["t"]
            return _with_host(state, node, stacks=content) if newer else state
        case OtherFile(name, record):
            return _with_names(state, record) if state.one_way and (node, name) == (0, "spec.json") else state


def _check_nodes(event: Event, hosts: int) -> None:
    """Raise ValueError for an event that names a host that the run does not have."""
    match event["e"]:
        case "join" | "clock" | "host":
            nodes = [event["node"]]
        case "waiting":
            nodes = event["missing"]
        case _:
            return
    if not all(0 <= node < hosts for node in nodes):
        raise ValueError("no such host")


def _with_host(state: RunState, node: int, **changes: Any) -> RunState:
    hosts = list(state.hosts)
    # Like `replace`, in a fifth of its time: each record of a run is processed here.
    host = hosts[node] = object.__new__(HostState)
    host.__dict__.update(state.hosts[node].__dict__, **changes)
    return RunState(state.run, tuple(hosts), state.queued, state.problem, state.lost, state.recorded, state.one_way)


def _with_names(state: RunState, spec: Mapping[str, object]) -> RunState:
    """The state with the names of the nodes of a Slurm job, which are not known before it runs."""
    names = job_nodes(spec, len(state.hosts))
    hosts = (replace(host, name=name) for host, name in zip(state.hosts, names, strict=False))
    return replace(state, hosts=tuple(hosts)) if names else state


def job_nodes(spec: Mapping[str, object], count: int) -> tuple[str, ...]:
    """The names of a job's nodes in a spec.json; empty before it runs, and for another run."""
    names = spec.get("hosts")
    if not spec.get("job") or not isinstance(names, list) or len(names) != count:
        return ()
    return tuple(clean(str(name)[:_NAME]) for name in names)


def _fold_metrics(series: Series, record: Metrics) -> Series:
    # Most records have no new names of metrics: they share one `first`.
    if record.keys() <= series.first.keys():
        first = series.first
    else:
        first = {**record, **series.first} if len(series.first) < MOST_METRICS else series.first
    t, before = record.get("t"), series.latest.get("t")
    pause = max(series.pause, t - before) if type(t) is float and type(before) is float else series.pause
    since, latest = series.not_finite_since, updated(series.latest, record)
    if record.get("loss") not in NOT_FINITE:
        since = None if "loss" in record else since
    elif series.latest.get("loss") not in NOT_FINITE:
        since = number(latest.get("step"))
    return Series(first, latest, _marked(series.marks, record), pause, since)


def _marked(marks: tuple[Mark, ...], record: Metrics) -> tuple[Mark, ...]:
    t = record.get("t")
    begun, newest = (marks[0].t, marks[-1].t) if marks else (-math.inf, -math.inf)
    if type(t) is float and t - begun < 2 * (newest - begun):  # nearly all records, so checked first
        return marks
    t, step = number(t), number(record.get("step"))
    if t is None or step is None or step <= 0 or t <= begun or t - begun < 2 * (newest - begun):
        return marks
    return (*marks[:1], *marks[1:][-1:], Mark(t, step))


def _fold_event(story: Story, event: Event) -> Story:  # noqa: C901, PLR0911, PLR0912 one case for each kind
    t = float(event["t"])
    story = replace(story, last=max(story.last, t), began=story.began or t)
    match event["e"]:
        case "supervisor" | "listen" | "step" | "launcher":
            return story
        case "join":
            missing = tuple(node for node in story.missing if node != event["node"])
            return replace(story, joined=story.joined | {event["node"]}, missing=missing)
        case "waiting":
            return replace(story, missing=tuple(event["missing"]))
        case "dial":
            place = f"{event['address']}:{event['port']}"
            return replace(story, dials=_with(story.dials, place, event["problem"]))
        case "clock":
            return replace(story, offsets={**story.offsets, event["node"]: float(event["offset"])})
        case "host":
            unseen = {node: word for node, word in story.unseen.items() if node != event["node"]}
            if event["state"] != "seen":
                unseen[event["node"]] = event["state"]
            return replace(story, unseen=unseen)
        case "note":
            in_line = story.in_line or queued_for(event["text"]) is not None
            return replace(story, notes=(*story.notes, event)[-_MOST:], in_line=in_line)
        case "left":
            return replace(story, left=tuple(event["processes"][:_MOST_LEFT]))
        case "verdict":
            return replace(story, verdict=event)
        case "stall":
            if event.get("over"):
                return replace(story, stall=None, stood=event, stood_until=event["t"])
            return replace(story, stall=event, stood=event, stood_until=None)
        case "straggler":
            return replace(story, slow=_while_it_lasts(story.slow, event["rank"], event))
        case "alarm":
            return replace(story, alarms=_while_it_lasts(story.alarms, event["text"], event))
        case "attempt":
            began = t if story.in_line and not story.attempts else story.began
            alarms = {text: one for text, one in story.alarms.items() if one.get("kind") != "watch"}
            story = replace(
                story, stall=None, stood=None, stood_until=None, slow={}, alarms=alarms, in_line=False, began=began
            )
            return _with_attempt(story, _with_event(_attempt(story, event["attempt"]), event))
        case "launch" | "rank" | "group" | "error" | "death" | "failed" | "stopping" | "ungrouped":
            return _with_attempt(story, _with_event(_attempt(story, event["attempt"]), event))
    raise Unhandled(event)


def _attempt(story: Story, number: int) -> Attempt:
    return story.attempts.get(number, Attempt(number))


def _with_event(attempt: Attempt, event: _AttemptEvent) -> Attempt:
    match event["e"]:
        case "attempt":
            return replace(attempt, master=event["master"], port=event["port"], world_size=event["world_size"])
        case "launch":
            return replace(attempt, launched=event["t"])
        case "rank":
            return replace(attempt, ranks=_with(attempt.ranks, event["rank"], event))
        case "group":
            return replace(attempt, groups=_with(attempt.groups, event["rank"], event))
        case "error" | "death":
            return replace(attempt, errors=(*attempt.errors, event)[:_MOST])
        case "failed":
            return replace(attempt, cause=event["cause"])
        case "stopping":
            return replace(attempt, stopping=event)
        case "ungrouped":
            unknown = bool(event.get("unknown"))
            return replace(attempt, ungrouped=not (unknown or event.get("over")), unchecked=unknown)
    raise Unhandled(event)


def _with_attempt(story: Story, attempt: Attempt) -> Story:
    return replace(story, attempts=_with(story.attempts, attempt.number, attempt), missing=())


def _fold_report(story: Story, number: int, report: Report) -> Story:
    """Apply a rank's own report (docs/formats.md, "ranks.jsonl")."""
    if report["e"] != "exit" or report.get("code") != 0:
        return story
    attempt = _attempt(story, number)
    attempt = replace(attempt, finished=_with(attempt.finished, report["rank"], float(report["t"])))
    return replace(story, attempts=_with(story.attempts, number, attempt))


def _while_it_lasts(known: Mapping[_Key, _Lasting], key: _Key, event: _Lasting) -> dict[_Key, _Lasting]:
    rest = {**known}
    rest.pop(key, None)
    return rest if event.get("over") else _with(rest, key, event)


def _with(known: Mapping[_Key, _Value], key: _Key, value: _Value) -> dict[_Key, _Value]:
    """The mapping with one more entry, if there is room."""
    return {**known, key: value} if key in known or len(known) < _MOST else {**known}
