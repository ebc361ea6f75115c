"""A run as a screen shows it: one immutable snapshot, made in a thread a few times a second."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from textual.message import Message
from textual.message_pump import MessagePump

from runner.api.following import Following
from runner.errors import DisttuiError
from runner.formatting import number
from runner.protocol.events import Event
from runner.runs.contents import (
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
from runner.runs.follow import LinkNews, Notice, QueueNews, RecordRead
from runner.runs.session import CaughtUp, Refresh
from runner.runs.state import RunState
from runner.text import clean
from tui.log import Older
from tui.run.events import Moment, add, moment
from tui.run.leader_clock import LeaderClock
from tui.run.series import MetricHistory

PACE = 0.25
"""The least seconds between two snapshots."""


@dataclass(frozen=True)
class Setup:
    """The settings of a run, from its spec."""

    backend: str = ""
    strategy: str = ""
    attempts: int = 1
    """The most attempts of the run."""


@dataclass(frozen=True)
class Playback:
    """The cursor of a replay."""

    begin: float
    end: float
    playing: bool
    speed: float


@dataclass(frozen=True)
class Snapshot:
    """All that a screen shows of a run. Texts from hosts are not cleaned."""

    state: RunState
    history: MetricHistory
    mirror: Path
    moments: tuple[Moment, ...] = ()
    setup: Setup = Setup()
    began: float | None = None
    """The time of its leader's first event, of any host's before that; None: not known yet, as while the hosts have not
    answered."""
    now: float = 0.0
    """The time that is shown, by the leader's clock: the present, or that of a replay's cursor (unix time, s)."""
    seen: Mapping[int, float] = field(default_factory=dict)
    """Node → the time of its last record (unix time, s)."""
    playback: Playback | None = None
    ended: bool = False
    """Whether no more records will come."""

    @property
    def over(self) -> bool:
        """Whether the run is over, so that its length is known."""
        return self.state.result is not None or self.playback is not None

    @property
    def elapsed(self) -> float:
        """Seconds from the beginning to now, or to the end."""
        if self.state.result is not None:
            return self.state.elapsed
        return max(0.0, self.now - self.state.began) if self.state.began else 0.0


class RunChanged(Message):
    """The run has changed to `snapshot`."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """Only the newest counts."""
        return isinstance(message, RunChanged)


class FeedFailed(Message):
    """The run cannot be shown, or no longer."""

    def __init__(self, error: DisttuiError) -> None:
        super().__init__()
        self.error = error


class Taker:
    """Collects from folded records what the state does not keep: history, moments, the time of each host's last record.

    Args:
        empty: The state of the run before its first record.
    """

    def __init__(self, empty: RunState, mirror: Path) -> None:
        self.state = empty
        self._snapshot = Snapshot(empty, MetricHistory(empty.world_size), mirror)
        self._seen: dict[int, float] = {}
        self._led = False
        """Whether an event of the leader has come."""
        self.latest = math.inf
        """No record counts as later than this (unix time, s)."""
        self.offsets: Mapping[int, float] = {}
        """How far hosts' clocks are ahead of the leader's, where that is known before it was recorded."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of all records taken so far."""
        return replace(self._snapshot, state=self.state)

    def take(self, state: RunState, node: int, content: Content) -> None:
        """Take a record that `state` already includes."""
        self.state = state
        at = number(_time(content))
        ahead = state.hosts[0].story.offsets.get(node, self.offsets.get(node, 0.0))
        now = None if at is None else number(at - ahead)
        if now is not None:
            now = min(now, self.latest)
            self._seen[node] = max(now, self._seen.get(node, 0.0))
        history = self._snapshot.history
        match content:
            case MetricsLine(attempt, rank, metrics) if now is not None:
                history.metrics(now, attempt, rank, metrics)
            case TelemetryLine(telemetry) if now is not None:
                history.telemetry(now, node, telemetry)
            case EventLine(event) if now is not None:
                self._event(state, event, node, now)
            case OtherFile("spec.json", spec) if node == 0:
                self._snapshot = replace(self._snapshot, setup=setup(spec))

    def add(self, new: Moment) -> None:
        """Add a moment that comes from no host's record."""
        self._snapshot = replace(self._snapshot, moments=add(self._snapshot.moments, new))

    def _event(self, state: RunState, event: Event, node: int, now: float) -> None:
        began = self._snapshot.began
        first = node == 0 and not self._led
        self._led |= first
        # The clock of any other host may be wrong, and how far it is off is not known yet.
        if began is None or first or (now < began and (node == 0 or not self._led)):
            self._snapshot = replace(self._snapshot, began=now)
        if node == 0 and event["e"] == "attempt":
            self._snapshot.history.begun[event["attempt"]] = now
        new = moment(event, node, now, state)
        if new is not None:
            self.add(new)

    def at(self, now: float, **changes: Any) -> Snapshot:
        """The snapshot of a time."""
        return replace(self._snapshot, state=self.state, now=now, seen=dict(self._seen), **changes)


class Feed(ABC):
    """Posts `RunChanged` to a widget or screen, from a thread of its own."""

    def __init__(self, target: MessagePump) -> None:
        self._target = target
        self._thread = threading.Thread(target=self._work, name="feed", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @abstractmethod
    def close(self) -> None:
        """End the thread; the run continues."""

    def wait(self, limit: float) -> None:
        """Wait at most `limit` seconds for the thread to end; after that it no longer writes the mirror."""
        self._thread.join(limit)

    @abstractmethod
    def run(self) -> None:
        """What the thread does. Raises DisttuiError."""

    def _work(self) -> None:
        try:
            self.run()
        except DisttuiError as error:
            self._target.post_message(FeedFailed(error))


class LiveFeed(Feed):
    """Follows a running run, or mirrors the rest of an ended one."""

    def __init__(self, target: MessagePump, following: Following) -> None:
        super().__init__(target)
        self._following = following
        self._taker = Taker(following.state, following.mirror)
        self._clock = LeaderClock()
        self._live = False
        """Whether what comes was written just now, not before this viewer came."""
        self._stops = 0
        self._left = False
        self._dirty = True
        self._posted = 0.0

    def stop(self) -> None:
        """Ask every host to stop the run; when called again, to kill it."""
        self._stops += 1
        self._following.stop(now=self._stops > 1)

    def earlier(self, wanted: Sequence[Older]) -> None:
        """Fetch beginnings of logs into the mirror that this feed writes; blocks. Raises DisttuiError."""
        self._following.fetch(wanted)

    def now(self) -> float:
        """The present, by the leader's clock (unix time, s)."""
        return self._clock.now()

    def close(self) -> None:
        """Stop following; the run continues."""
        self._left = True
        self._following.leave()

    def run(self) -> None:
        """Follow the run to its end."""
        for update in self._following:
            state = self._following.state
            if isinstance(update, RecordRead):
                self.record(state, update.node, update.content)
            elif isinstance(update, LinkNews | QueueNews):
                self._taker.state = state
                self._dirty = True
            elif isinstance(update, Notice):
                words = f"{state.hosts[update.node].name}: {update.text}"
                self._taker.add(Moment(self.now(), "warning", "", clean(words)))
                self._dirty = True
            elif isinstance(update, CaughtUp):
                self._live = True
            elif isinstance(update, Refresh):
                self.refresh()
        self._post(ended=not self._left)

    def record(self, state: RunState, node: int, content: Content) -> None:
        """Take a record."""
        if node == 0 and isinstance(content, TelemetryLine):  # times of metrics are a script's
            t = number(_time(content))
            if t is not None:
                self._clock.hear(t, live=self._live)
        self._taker.take(state, node, content)
        self._dirty = True

    def refresh(self) -> None:
        """Post a snapshot to the screen, at most one per PACE."""
        if self._dirty and time.monotonic() - self._posted >= PACE:
            self._post()

    def _post(self, *, ended: bool = False) -> None:
        self._dirty = False
        self._posted = time.monotonic()
        # The time of an ended run stays at its end, so that its charts do not grow.
        result, now = self._taker.state.result, self.now()
        now = min(now, result.get("t", now)) if result else now
        self._target.post_message(RunChanged(self._taker.at(now, ended=ended)))


def _time(content: Content) -> object:
    match content:
        case MetricsLine() as line:  # first: nearly all records of a large run
            return line.metrics.get("t")
        case EventLine(event):
            return event["t"]
        case TelemetryLine(telemetry):
            return telemetry["t"]
        case NewerEvent(t):
            return t
        case ReportLine(_, report):
            return report["t"]
        case StacksFile(_, _, stacks):
            return stacks["t"]
        case ExitFile(end):
            return end.get("t")
        case OtherFile(_, record):
            return record.get("t")


def setup(spec: Mapping[str, object]) -> Setup:
    """The settings in a spec; malformed values are ignored."""
    launch, target = spec.get("launch"), spec.get("target")
    arguments = target.get("args") if isinstance(target, Mapping) else None
    words = [str(word) for word in arguments] if isinstance(arguments, list) else []
    strategy = next((words[at + 1] for at, word in enumerate(words[:-1]) if word == "--strategy"), "")
    restarts = launch.get("restarts") if isinstance(launch, Mapping) else None
    return Setup(
        clean(str(spec.get("backend") or ""))[:20],
        clean(strategy)[:20],
        restarts + 1 if isinstance(restarts, int) else 1,
    )
