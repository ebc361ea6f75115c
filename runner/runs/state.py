"""The fold: a run's files → one state. Pure; live view, attach and replay all see a run through it.

Every file of every host is folded on its own, and whatever concerns the whole run is derived from those parts. So the
order in which the files of several hosts arrive cannot change the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from runner.runs.attempt import FOLDS, Attempt, Record, reported, seconds
from runner.runs.shapes import check


@dataclass(frozen=True)
class Story:
    """What a host's events.jsonl tells."""

    attempts: Mapping[int, Attempt] = field(default_factory=dict)
    joined: frozenset[int] = frozenset()
    missing: tuple[int, ...] = ()
    dials: Mapping[str, str] = field(default_factory=dict)
    """Address of the leader → why it could not be reached."""
    offsets: Mapping[int, float] = field(default_factory=dict)
    """Node → its clock minus the leader's, seconds."""
    unseen: Mapping[int, str] = field(default_factory=dict)
    """Node → "not seen" or "lost", as this host sees the gang."""
    notes: tuple[Record, ...] = ()
    left: tuple[Record, ...] = ()
    stall: Record | None = None
    """The `stall` that lasts."""
    stood: Record | None = None
    """The last `stall` of the newest attempt, with `ended`, the time at which it was over, if it was."""
    slow: Mapping[int, Record] = field(default_factory=dict)
    """Rank → its `straggler` event, while it is slow."""
    alarms: Mapping[str, Record] = field(default_factory=dict)
    """Text → `alarm` event, while it lasts."""
    verdict: Record | None = None
    last: float = 0.0


@dataclass(frozen=True)
class Series:
    """What a rank's metrics file tells, without its history."""

    first: Mapping[str, Any] = field(default_factory=dict)
    latest: Mapping[str, Any] = field(default_factory=dict)
    count: int = 0


@dataclass(frozen=True)
class HostState:
    """One host of the run."""

    node: int
    name: str
    nproc: int
    link: str = "connecting"
    """What this viewer has to do with it: connecting, starting, seen, not seen, ended, gone (it, or its run folder)."""
    link_note: str = ""
    story: Story = Story()
    series: Mapping[tuple[int, int], Series] = field(default_factory=dict)
    """(attempt, rank) → metrics."""
    telemetry: Record | None = None
    stacks: Record | None = None
    """The newest stacks-<n>.json, with its name as `file`."""
    exit: Record | None = None


@dataclass(frozen=True)
class RunState:
    """A run as known so far."""

    run: str
    hosts: tuple[HostState, ...]

    @property
    def world_size(self) -> int:
        """Processes over all hosts."""
        return sum(host.nproc for host in self.hosts)

    def host_of(self, rank: Any) -> str:
        """The name of the host that a rank runs on, "?" where there is no such rank."""
        first = 0
        for host in self.hosts:
            first += host.nproc
            if isinstance(rank, int) and 0 <= rank < first:
                return host.name
        return "?"

    @property
    def attempt(self) -> int:
        """Number of the newest attempt, 0 before the first."""
        return max((number for host in self.hosts for number in host.story.attempts), default=0)

    @property
    def attempts(self) -> tuple[int, ...]:
        """The numbers of all attempts that a host tells of."""
        return tuple(sorted({number for host in self.hosts for number in host.story.attempts}))

    @property
    def exits(self) -> tuple[Record, ...]:
        """The exit.json of every host that has ended."""
        return tuple(host.exit for host in self.hosts if host.exit is not None)

    @property
    def result(self) -> Record | None:
        """How the run ended: the leader's word where it is there, else the worst of the others'; None: it lives."""
        if self.hosts and self.hosts[0].exit is not None:
            return self._unless_stopped(self.hosts[0].exit)
        if self.exits and all(host.exit is not None or host.link == "gone" for host in self.hosts):
            return max(self.exits, key=exit_code)
        return None

    def _unless_stopped(self, end: Record) -> Record:
        """The leader's word, unless it knows only that hosts are lost which somebody has stopped meanwhile."""
        cause = end.get("cause")
        if not isinstance(cause, Mapping) or cause.get("kind") != "host lost":
            return end
        return next((other for other in self.exits if other.get("state") == "stopped"), end)

    def ranks(self) -> Iterator[tuple[HostState, int, Series]]:
        """Host, rank and metrics of every rank of the newest attempt that has metrics, by rank."""
        newest = self.attempt
        found = [
            (host, rank, series)
            for host in self.hosts
            for (attempt, rank), series in host.series.items()
            if attempt == newest
        ]
        return iter(sorted(found, key=lambda item: item[1]))

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The newest value of every metric, each from the lowest rank that has it."""
        merged: dict[str, Any] = {}
        for _, _, series in self.ranks():
            merged = {**series.latest, **merged}
        return merged

    @property
    def first_loss(self) -> float | None:
        """The first loss of the first attempt, from the lowest rank that has one."""
        found = sorted(
            (attempt, rank, series.first["loss"])
            for host in self.hosts
            for (attempt, rank), series in host.series.items()
            if isinstance(series.first.get("loss"), int | float)
        )
        return float(found[0][2]) if found else None


def exit_code(end: Record) -> int:
    """The code in a host's exit.json; 1 where it tells none."""
    code = end.get("code")
    return code if isinstance(code, int) else 1


def begin(run: str, names: tuple[str, ...], nproc: tuple[int, ...]) -> RunState:
    """The state of a run of which nothing is known yet."""
    hosts = zip(names, nproc, strict=True)
    return RunState(run, tuple(HostState(node, name, count) for node, (name, count) in enumerate(hosts)))


def link(state: RunState, node: int, kind: str, note: str = "") -> RunState:
    """This viewer's own news of a host: its link is now `kind`."""
    return _with_host(state, node, link=kind, link_note=note)


def fold(state: RunState, node: int, file: str, record: Record) -> RunState:
    """Take one record of one host's file. Unknown files and kinds change nothing."""
    host = state.hosts[node]
    if file == "events.jsonl":
        check(record, len(state.hosts))
        return _with_host(state, node, story=_fold_event(host.story, record))
    if file == "telemetry.jsonl":
        return _with_host(state, node, telemetry=record)
    if file == "exit.json":
        return _with_host(state, node, exit=record)
    if file.startswith("stacks-"):
        newer = host.stacks is None or seconds(record["t"]) >= seconds(host.stacks["t"])
        return _with_host(state, node, stacks={**record, "file": file}) if newer else state
    if file.endswith("/ranks.jsonl"):
        return _with_host(state, node, story=_fold_report(host.story, file, record))
    place = metrics_place(file)
    if place is None:
        return state
    return _with_host(
        state, node, series={**host.series, place: _fold_metrics(host.series.get(place, Series()), record)}
    )


@lru_cache(4096)
def metrics_place(file: str) -> tuple[int, int] | None:
    """(attempt, rank) of a metrics file's name, None for other files."""
    attempt, _, base = file.partition("/")
    if not (attempt.startswith("attempt-") and base.startswith("rank-") and base.endswith(".metrics.jsonl")):
        return None
    try:
        return int(attempt[8:]), int(base[5:-14])
    except ValueError:
        return None


def _with_host(state: RunState, node: int, **changes: Any) -> RunState:
    hosts = list(state.hosts)
    hosts[node] = replace(hosts[node], **changes)
    return RunState(state.run, tuple(hosts))


def _fold_metrics(series: Series, record: Record) -> Series:
    # Most records tell nothing for the first time: then they all share one `first`.
    first = series.first if record.keys() <= series.first.keys() else {**record, **series.first}
    return Series(first, {**series.latest, **record}, series.count + 1)


def _fold_event(story: Story, event: Record) -> Story:
    story = replace(story, last=max(story.last, seconds(event.get("t", 0.0))))
    kind = event.get("e")
    if kind == "join":
        return replace(
            story,
            joined=story.joined | {event["node"]},
            missing=tuple(n for n in story.missing if n != event["node"]),
        )
    if kind == "waiting":
        return replace(story, missing=tuple(event["missing"]))
    if kind == "dial":
        return replace(story, dials={**story.dials, f"{event['address']}:{event['port']}": str(event["problem"])})
    if kind == "clock":
        return replace(story, offsets={**story.offsets, event["node"]: float(event["offset"])})
    if kind == "host":
        unseen = {node: word for node, word in story.unseen.items() if node != event["node"]}
        if event["state"] != "seen":
            unseen[event["node"]] = event["state"]
        return replace(story, unseen=unseen)
    if kind == "note":
        return replace(story, notes=(*story.notes, event))
    if kind == "left":
        return replace(story, left=tuple(one for one in event["processes"] if isinstance(one, Mapping)))
    if kind == "verdict":
        return replace(story, verdict=event)
    if kind == "stall":
        if event.get("over"):
            return replace(story, stall=None, stood={**event, "ended": event.get("t")})
        return replace(story, stall=event, stood=event)
    if kind == "straggler":
        return replace(story, slow=_while_it_lasts(story.slow, event["rank"], event))
    if kind == "alarm":
        return replace(story, alarms=_while_it_lasts(story.alarms, str(event["text"]), event))
    if isinstance(kind, str) and kind in FOLDS:
        number = event["attempt"]
        attempt = FOLDS[kind](story.attempts.get(number, Attempt(number)), event)
        if kind == "attempt":
            story = replace(story, stall=None, stood=None, slow={})
        return replace(story, attempts={**story.attempts, number: attempt}, missing=())
    return story


def _fold_report(story: Story, file: str, report: Record) -> Story:
    number = file.partition("/")[0].removeprefix("attempt-")
    if not number.isdigit():
        return story
    attempt = reported(story.attempts.get(int(number), Attempt(int(number))), report)
    return replace(story, attempts={**story.attempts, attempt.number: attempt}) if attempt.finished else story


def _while_it_lasts(known: Mapping[Any, Record], key: Any, event: Record) -> dict[Any, Record]:
    rest = {other: record for other, record in known.items() if other != key}
    return rest if event.get("over") else {**rest, key: event}
