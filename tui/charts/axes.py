"""The horizontal axis of a chart, by time or by step: the columns of a track on it, and its ticks. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from runner.formatting import duration
from tui.charts.plot import clock_ticks, round_above, span, step_ticks
from tui.run.feed import Snapshot
from tui.run.series import Bucket, Track


class Tick(NamedTuple):
    """A label of the axis."""

    share: float
    """0 at the left end, 1 at the right."""
    words: str


class AxisInterval(NamedTuple):
    """The interval between two places of the axis."""

    end: float
    """Unix time: the values shown are the newest before it."""
    words: str
    """`0:35, step 420`."""


class Axis(ABC):
    """From `begin` to `end`, in its own unit.

    Args:
        window: Length of the part shown, up to its end; None: all of it.
        count: Number of columns.
    """

    SHORTEST: ClassVar[float]
    """The least length that is shown."""

    def __init__(self, snapshot: Snapshot, window: float | None, count: int) -> None:
        self._snapshot = snapshot
        self.count = count
        self.whole = max(self.SHORTEST, self._length())
        if window is None:
            self.begin, self.end = 0.0, self.whole if snapshot.over else self.rounded(self.whole)
        else:
            # Columns keep their places while a chart grows: it moves by whole columns only.
            column = window / max(1, count)
            self.end = -(-self._length() // column) * column
            self.begin = self.end - window

    @abstractmethod
    def _length(self) -> float:
        """The length of the run so far, in this axis' unit."""

    @staticmethod
    @abstractmethod
    def rounded(length: float) -> float:
        """A length that stays the same for a while as the run grows."""

    @abstractmethod
    def pieces(self, track: Track) -> list[list[Bucket | None]]:
        """The columns of a track, one list per line."""

    @abstractmethod
    def place(self, time: float) -> float | None:
        """The place of a time, in this axis' unit; None if it has none."""

    @abstractmethod
    def between(self, first: float, last: float) -> AxisInterval | None:
        """The interval between two places; None if it has no values yet."""

    @abstractmethod
    def moment(self, place: float) -> float | None:
        """The unix time of a place, even after the time shown; None if it has none."""

    @abstractmethod
    def begun(self) -> dict[int, float]:
        """Attempt → the place where it begins, without the first attempt."""

    @abstractmethod
    def ticks(self, room: int) -> list[Tick]:
        """Labels for `room` cells."""

    @staticmethod
    @abstractmethod
    def words(length: float) -> str:
        """A length of this axis as text."""

    def share(self, place: float) -> float:
        """The share of a place: 0 at the left end, 1 at the right."""
        return (place - self.begin) / (self.end - self.begin)

    def at(self, share: float) -> float:
        """The place at a share."""
        return self.begin + share * (self.end - self.begin)


class TimeAxis(Axis):
    """Seconds since the run began."""

    SHORTEST = 15.0

    @property
    def _began(self) -> float:
        began = self._snapshot.began
        return self._snapshot.now if began is None else began

    def _length(self) -> float:
        snapshot = self._snapshot
        return (snapshot.playback.end if snapshot.playback else snapshot.now) - self._began

    @staticmethod
    def rounded(length: float) -> float:
        """The next length that divides well."""
        return span(length)

    def pieces(self, track: Track) -> list[list[Bucket | None]]:
        """One line."""
        began = self._began
        return [track.columns(began + self.begin, began + self.end, self.count, self._snapshot.now)]

    def place(self, time: float) -> float | None:
        """Seconds since the beginning."""
        return time - self._began

    def between(self, first: float, last: float) -> AxisInterval | None:
        """The time itself, with the step that was reached then."""
        snapshot = self._snapshot
        begin, end = self._began + first, min(self._began + last, math.nextafter(snapshot.now, math.inf))
        if begin >= end:
            return None
        attempt = max((number for number, begun in snapshot.history.begun.copy().items() if begun < end), default=1)
        steps = snapshot.history.steps.get(attempt)
        step = steps.at(math.nextafter(end, -math.inf)) if steps is not None else None
        words = duration(min((first + last) / 2, snapshot.now - self._began))
        return AxisInterval(end, words if step is None else f"{words}, step {step:,.0f}")

    def moment(self, place: float) -> float | None:
        """The beginning of the run plus the place."""
        return self._began + place

    def begun(self) -> dict[int, float]:
        """Attempt → the place where it begins according to its event, without the first attempt."""
        snapshot = self._snapshot
        return {
            attempt: begun - self._began
            for attempt, begun in sorted(snapshot.history.begun.copy().items())
            if attempt > 1 and begun <= snapshot.now
        }

    def ticks(self, room: int) -> list[Tick]:
        """Times that are round on a clock."""
        most = max(1, room // max(10, len(duration(self.end)) * 3 // 2 + 2))
        return [Tick(self.share(tick), duration(tick)) for tick in clock_ticks(self.begin, self.end, most)]

    @staticmethod
    def words(length: float) -> str:
        """The length as a clock shows it."""
        return duration(length)


class StepAxis(Axis):
    """Steps; each attempt is a line of its own, because it may repeat steps of an earlier one."""

    SHORTEST = 10.0

    def _length(self) -> float:
        return max((steps.last or 0.0 for steps in self._snapshot.history.steps.copy().values()), default=0.0)

    @staticmethod
    def rounded(length: float) -> float:
        """The next round number."""
        return round_above(length)

    def _attempts(self) -> list[tuple[int, Track, float]]:
        """(attempt, its steps, when the next one begins) of every attempt that has begun at the time shown."""
        history, now = self._snapshot.history, self._snapshot.now
        known = [
            (attempt, steps) for attempt, steps in sorted(history.steps.copy().items()) if steps.at(now) is not None
        ]
        ends = [*(history.begun.get(attempt, math.inf) for attempt, _ in known[1:]), math.inf]
        # Before the first step there is an end, and no attempt.
        return [(attempt, steps, end) for (attempt, steps), end in zip(known, ends, strict=False)]

    def pieces(self, track: Track) -> list[list[Bucket | None]]:
        """A line for each attempt."""
        edges = [self.at(column / self.count) for column in range(self.count)]
        return [
            track.between([*(steps.when(edge, end) for edge in edges), end], self._snapshot.now)
            for _, steps, end in self._attempts()
        ]

    def place(self, time: float) -> float | None:
        """The step that was reached then."""
        for _, steps, _ in reversed(self._attempts()):
            step = steps.at(time)
            if step is not None:
                return step
        return None

    def between(self, first: float, last: float) -> AxisInterval | None:
        """The interval in the newest attempt that has reached it."""
        now = self._snapshot.now
        for _, steps, until in reversed(self._attempts()):
            reached = steps.at(now)
            if steps.first is None or steps.first >= last or reached is None or reached < first:
                continue
            end = min(steps.when(last, until), math.nextafter(now, math.inf))
            return AxisInterval(end, f"step {steps.at(math.nextafter(end, -math.inf)) or 0:,.0f}")
        return None

    def moment(self, place: float) -> float | None:
        """When the newest attempt that has reached the step reached it."""
        for _, steps in sorted(self._snapshot.history.steps.copy().items(), reverse=True):
            if steps.first is not None and steps.first <= place <= (steps.last or 0.0):
                return steps.when(place, 0.0)
        return None

    def begun(self) -> dict[int, float]:
        """Attempt → the first step that it logs, without the first attempt."""
        return {attempt: first for attempt, steps, _ in self._attempts() if attempt > 1 and (first := steps.first)}

    def ticks(self, room: int) -> list[Tick]:
        """Round numbers."""
        most = max(1, room // max(10, len(f"{self.end:,.0f}") * 3 // 2 + 2))
        return [Tick(self.share(tick), f"{tick:,.0f}") for tick in step_ticks(self.begin, self.end, most)]

    @staticmethod
    def words(length: float) -> str:
        """A number of steps."""
        return f"{length:,.0f} steps"
