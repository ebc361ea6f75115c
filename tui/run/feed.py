"""A run as a screen shows it: an immutable snapshot, made in a thread a few times per second."""

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

from disttui.runner.errors import DisttuiError
from disttui.runner.formatting import number
from disttui.runner.protocol.events import Event
from disttui.runner.render.status import lag_words
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
from disttui.runner.runs.follow import LinkNews, LogRead, Notice, QueueNews, RecordRead
from disttui.runner.runs.following import CaughtUp, Following, Refresh
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean
from disttui.tui.log import Older
from disttui.tui.run.events import Moment, add, moment
from disttui.tui.run.series import MetricHistory


class LeaderClock:
    """Estimates the leader's time from its records as they arrive.

    Records arrive with varying delay, so the smallest difference between the clocks counts. It is taken over the last
    two windows of records, because this machine's clock may be corrected at any time.
    """

    _WINDOW = 30.0

    def __init__(self) -> None:
        self._since = -math.inf
        self._before = self._newest = math.inf
        """Seconds by which the leader is behind this machine's clock: minima of the previous and of this window."""

    def hear(self, t: float, *, live: bool) -> None:
        """Take the time (unix time, s) of a record that has just arrived.

        Args:
            live: Whether it was written just now. An older one can only show that the leader is ahead.
        """
        behind, now = time.time() - t, time.monotonic()
        if behind >= 0 and not live:
            return
        if now - self._since > self._WINDOW:
            self._before, self._newest, self._since = self._newest, behind, now
        self._newest = min(self._newest, behind)

    def now(self) -> float:
        """The leader's time (unix time, s), or this machine's before the first record."""
        behind = min(self._before, self._newest)
        return time.time() - (behind if math.isfinite(behind) else 0.0)


PACE = 0.25
"""Minimum seconds between two snapshots."""


@dataclass(frozen=True)
class Setup:
    """The settings of a run, from its spec."""

    backend: str = ""
    strategy: str = ""
    attempts: int = 1
    """Maximum number of attempts of the run."""


@dataclass(frozen=True)
class Playback:
    """The state of a replay; `begin` and `end` of the run are unix times (s)."""

    begin: float
    end: float
    playing: bool
    speed: float
    lacking: tuple[str, ...] = ()
    """Why part of the run is missing here."""
    moments: tuple[Moment, ...] = ()
    """Those of the whole run."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that a screen shows of a run; text from hosts is not cleaned."""

    state: RunState
    history: MetricHistory
    mirror: Path
    moments: tuple[Moment, ...] = ()
    setup: Setup = Setup()
    began: float | None = None
    """Time of the leader's first event, or of any host's before that (unix time, s); None if it is not known yet."""
    now: float = 0.0
    """The time shown, by the leader's clock (unix time, s): now, or that of a replay's cursor."""
    seen: Mapping[int, float] = field(default_factory=dict)
    """Node rank → the time of its last record (unix time, s)."""
    playback: Playback | None = None
    ended: bool = False
    """Whether no more records will arrive."""
    lag: str = ""
    """How far the mirrored logs lag behind those of the hosts, as text; empty if they do not."""

    @property
    def over(self) -> bool:
        """Whether the length of the run is known, because it has ended or is replayed."""
        return self.state.result is not None or self.playback is not None

    @property
    def cut_off(self) -> bool:
        """Whether this is the last known state of a run whose end is missing."""
        play = self.playback
        unended = self.state.result is None and not self.state.lost
        return play is not None and bool(play.lacking) and self.now >= play.end and unended

    @property
    def elapsed(self) -> float:
        """Seconds from the beginning of the run to now, or to its end."""
        if self.state.result is not None:
            return self.state.elapsed
        return max(0.0, self.now - self.state.began) if self.state.began else 0.0


class RunChanged(Message):
    """The run has changed to `snapshot`."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, RunChanged)


class FeedFailed(Message):
    """The run cannot be shown, or cannot be followed any longer."""

    def __init__(self, error: DisttuiError) -> None:
        super().__init__()
        self.error = error


class LogsCut(Message):
    """Part of the logs was skipped, and is only on the hosts."""


class SnapshotBuilder:
    """Builds snapshots: adds the history, moments and time of each host's last record to the state.

    Args:
        empty: The state of the run before its first record.
    """

    def __init__(self, empty: RunState, mirror: Path) -> None:
        self.state = empty
        self._snapshot = Snapshot(empty, MetricHistory(empty.world_size), mirror)
        self._seen: dict[int, float] = {}
        self._led = False
        """Whether an event of the leader has arrived."""
        self.latest = math.inf
        """Latest accepted time of a record (unix time, s)."""
        self.offsets: Mapping[int, float] = {}
        """Node rank → seconds by which its clock is ahead of the leader's, if known before its record is taken."""

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
            if not isinstance(content, MetricsLine):  # their times may be the script's
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
        """Add a moment that is not from a host's record."""
        self._snapshot = replace(self._snapshot, moments=add(self._snapshot.moments, new))

    def _event(self, state: RunState, event: Event, node: int, now: float) -> None:
        began = self._snapshot.began
        first = node == 0 and not self._led
        self._led |= first
        # The clock of any other host may be wrong by an offset that is not known yet.
        if began is None or first or (now < began and (node == 0 or not self._led)):
            self._snapshot = replace(self._snapshot, began=now)
        if node == 0 and event["e"] == "attempt":
            self._snapshot.history.begun[event["attempt"]] = now
        new = moment(event, node, now, state)
        if new is not None:
            self.add(new)

    def at(self, now: float, **changes: Any) -> Snapshot:
        """The snapshot of all records taken so far, at a unix time (s)."""
        return replace(self._snapshot, state=self.state, now=now, seen=dict(self._seen), **changes)


class Feed(ABC):
    """Posts `RunChanged` to a widget or screen from a separate thread."""

    def __init__(self, target: MessagePump) -> None:
        self._target = target
        self._thread = threading.Thread(target=self._work, name="feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @abstractmethod
    def close(self) -> None:
        """End the thread; the run continues."""

    def wait(self, limit: float) -> None:
        """Wait at most `limit` seconds for the thread to end; after that it no longer writes the mirror."""
        self._thread.join(limit)

    @abstractmethod
    def run(self) -> None:
        """Do the work of the thread. Raises DisttuiError."""

    def _work(self) -> None:
        try:
            self.run()
        except DisttuiError as error:
            self._target.post_message(FeedFailed(error))


class LiveFeed(Feed):
    """Follows a running run, or completes the mirror of an ended one."""

    def __init__(self, target: MessagePump, following: Following) -> None:
        super().__init__(target)
        self._following = following
        self._builder = SnapshotBuilder(following.state, following.mirror)
        self._clock = LeaderClock()
        self._live = False
        """Whether incoming records are new, rather than from before this viewer attached."""
        self._stops = 0
        self._left = False
        self._lag = ""
        self._skips = False
        self._cut = False
        self._dirty = True
        self._posted = 0.0

    def stop(self) -> None:
        """Ask every host to stop the run, or to kill it when called again."""
        self._stops += 1
        self._following.stop(now=self._stops > 1)

    def skip(self) -> None:
        """Skip the pending part of the logs; the hosts keep it."""
        self._skips = True
        self._following.skip()

    def earlier(self, wanted: Sequence[Older]) -> None:
        """Fetch beginnings of logs into the mirror that this feed writes; blocks. Raises DisttuiError."""
        self._following.fetch(wanted)

    def now(self) -> float:
        """The current time by the leader's clock (unix time, s)."""
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
                self._builder.state = state
                self._dirty = True
                if isinstance(update, LinkNews) and update.kind == "failed":
                    self._target.post_message(FeedFailed(DisttuiError(update.note)))
            elif isinstance(update, Notice):
                words = f"{state.hosts[update.node].name}: {update.text}"
                self._builder.add(Moment(self.now(), "warning", "", clean(words)))
                self._dirty = True
            elif isinstance(update, CaughtUp):
                self._live = True
            elif isinstance(update, LogRead):
                self._cut |= self._skips and update.restart
            elif isinstance(update, Refresh):
                self._show_lag(update)
                self.refresh()
        self._builder.state = self._following.state  # with the hosts that were given up
        self._post(ended=not self._left)

    def _show_lag(self, now: Refresh) -> None:
        lag = lag_words(now.behind, now.pending)
        self._dirty |= lag != self._lag
        self._lag = lag
        if self._cut:
            self._cut = False
            self._target.post_message(LogsCut())

    def record(self, state: RunState, node: int, content: Content) -> None:
        if node == 0 and isinstance(content, TelemetryLine):  # the times of metrics come from a script
            t = number(_time(content))
            if t is not None:
                self._clock.hear(t, live=self._live)
        self._builder.take(state, node, content)
        self._dirty = True

    def refresh(self) -> None:
        """Post a snapshot to the screen, at most one per PACE."""
        if self._dirty and time.monotonic() - self._posted >= PACE:
            self._post()

    def _post(self, *, ended: bool = False) -> None:
        self._dirty = False
        self._posted = time.monotonic()
        # The time of an ended run stops at its end, so that its charts do not grow.
        result, now = self._builder.state.result, self.now()
        now = min(now, result.get("t", now)) if result else now
        self._target.post_message(RunChanged(self._builder.at(now, ended=ended, lag=self._lag)))


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
