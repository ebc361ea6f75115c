"""Plots in braille dots, two columns and four rows per cell, and their axes by time or by step. No I/O."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import ClassVar, NamedTuple

from disttui.runner.formatting import duration
from disttui.tui.run.feed import Snapshot
from disttui.tui.run.series import Bucket, Track

_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
SPANS = (
    10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600, 900, 1200, 1800, 2700, 3600, 5400, 7200, 10800, 14400,
    21600, 28800, 43200, 57600, 86400,
)  # fmt: skip
"""Lengths of the time axis that divide into round ticks (s)."""
STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
)  # fmt: skip
"""Distances of ticks that are round on a clock (s)."""
CLOSE = 0.35
"""A logarithmic scale has linear ticks if the lowest value is at least this share of the highest."""
BRIDGE = 4
"""A line joins values up to this many times the median distance between its values (at least a column)."""


class Scale(NamedTuple):
    """Maps values to rows of dots."""

    low: float
    high: float
    marks: tuple[float, ...]
    """Round values that may have a label, in rising order."""
    log: bool
    """Whether `low` and `high` are logarithms."""

    def share(self, value: float) -> float:
        """The height of a value: 0 at the bottom, 1 at the top."""
        if self.log:
            value = math.log10(value) if value > 0 else self.low
        return (value - self.low) / (self.high - self.low)

    def ticks(self, rows: int) -> dict[int, float]:
        """Row of cells, counted from the top → the value to write there."""
        most = (rows - 1) // 2 + 1
        return {rows - 1 - round(self.share(value) * (rows * 4 - 1)) // 4: value for value in self._fitting(most)}

    def _fitting(self, most: int) -> Sequence[float]:
        if self.log and len(self.marks) > most:
            # Only the decades of 1, 2, 5, 10 …, so that labels stay evenly spaced.
            decades = [value for value in self.marks if _is_decade(value)]
            if len(decades) > 1:
                return decades[:: math.ceil(len(decades) / most)]
        return self.marks[:: math.ceil((len(self.marks) - 1) / max(1, most - 1)) or 1]


def scale(values: Sequence[float], *, log: bool, binary: bool = False) -> Scale:
    """Make a scale that contains all values, and stays the same while they change only a little.

    Args:
        binary: The values count bytes: ticks are round in the unit of the largest.
    """
    if log:
        return _log_scale([value for value in values if value > 0])
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low >= 0 and low < 0.35 * high:
        low = 0.0
    if high - low <= abs(high) * 1e-6:
        low, high = (0.0, high * 1.25) if high > 0 else (low * 1.25, 0.0) if low < 0 else (0.0, 1.0)
    unit = 1024.0 ** max(0, math.floor(math.log(max(high, -low), 1024))) if binary else 1.0
    step = max(round_above((high - low) / 4 / unit) * unit, 1.0 if binary else 0.0)
    marks = _multiples(low, high, step)
    return Scale(marks[0], marks[-1], marks, log=False)


def _multiples(low: float, high: float, step: float) -> tuple[float, ...]:
    """The multiples of a step that enclose `low` and `high`."""
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(number * step for number in range(first, max(last, first + 1) + 1))


def _log_scale(values: Sequence[float]) -> Scale:
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    if low >= CLOSE * high:
        # Less than half a decade: values with round logarithms are too far apart.
        marks = _multiples(low, high, round_above((high - low if high - low > high * 1e-6 else high) / 4))
        marks = marks if marks[0] > 0 else marks[1:]
    else:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        known = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
        first = max(bisect_right(known, low * (1 + 1e-9)) - 1, 0)
        marks = tuple(known[first : bisect_left(known, high * (1 - 1e-9)) + 1])
        marks = tuple(value for value in marks if value > 0)
    return Scale(math.log10(marks[0]), math.log10(marks[-1]), marks, log=True)


def _is_decade(value: float) -> bool:
    return f"{value:e}".startswith("1.000000e")


def round_above(rough: float) -> float:
    """The smallest number not below `rough` that is 1, 2, 2.5 or 5 times a power of ten."""
    power = float(10 ** math.floor(math.log10(rough)))
    return next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * 0.999)


def step_ticks(begin: float, end: float, most: int) -> list[float]:
    """At most `most` round numbers of steps from `begin` to `end`."""
    every = max(1.0, round_above((end - begin) / max(1, most)))
    every = every if every.is_integer() else every * 2
    return [tick * every for tick in range(math.ceil(begin / every - 1e-9), math.floor(end / every + 1e-9) + 1)]


def span(seconds: float) -> float:
    """The shortest of SPANS, or of whole days, not below `seconds`, so that a growing chart rarely rescales."""
    return next((float(one) for one in SPANS if one >= seconds), math.ceil(seconds / 86400) * 86400.0)


def clock_ticks(begin: float, end: float, most: int) -> list[float]:
    """At most `most` round times from `begin` to `end` (s since the run began)."""
    rough = (end - begin) / max(1, most)
    step = next((float(one) for one in STEPS if one >= rough), math.ceil(rough / 86400) * 86400.0)
    first = math.ceil(begin / step - 1e-9)
    return [tick * step for tick in range(first, math.floor(end / step + 1e-9) + 1)]


def longest_bridge(columns: Sequence[Bucket | None]) -> int:
    """Maximum distance in columns of two values that a line joins; a longer gap breaks it."""
    places = [x for x, column in enumerate(columns) if column]
    apart = sorted(after - before for before, after in pairwise(places))
    return BRIDGE * max(1, apart[len(apart) // 2]) if apart else BRIDGE


class Canvas:
    """Cells of dots, each with the number of the line drawn into it last."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._dots = [[0] * width for _ in range(height)]
        self._under = [[" "] * width for _ in range(height)]
        self.lines: list[list[int]] = [[-1] * width for _ in range(height)]

    def text(self, y: int) -> str:
        """The text of a row of cells."""
        return "".join(
            chr(0x2800 + dots) if dots else under for dots, under in zip(self._dots[y], self._under[y], strict=True)
        )

    def pieces(self, y: int) -> Iterator[tuple[int, str]]:
        """Yield the text of a row of cells in parts, each with the number of its line, or -1."""
        row = self.text(y)
        start = 0
        for number, part in groupby(self.lines[y]):
            end = start + len(list(part))
            yield number, row[start:end]
            start = end

    def letter(self, line: int, x: int, value: float, to: Scale, letter: str) -> None:
        """Write a letter in place of the dots of a column at a value."""
        y = self.height - 1 - self._row(to, value) // 4
        self._dots[y][x // 2], self._under[y][x // 2], self.lines[y][x // 2] = 0, letter, line

    def rule(self, line: int, x: int, over: int) -> None:
        """Draw a vertical line behind all lines except `over`."""
        for y in range(self.height):
            if self.lines[y][x] == over:
                self._dots[y][x] = 0
            self._put(line, x, y, "│")

    def mark(self, line: int, x: int, label: int, words: str) -> None:
        """Draw a vertical line behind everything else, with words in the colour of `label` beside its top."""
        for y in range(self.height):
            self._put(line, x, y, "┊")
        for start in (x + 1, x - len(words)):
            here = range(start, start + len(words))
            if start >= 0 and here.stop <= self.width and all(self.lines[0][at] < 0 for at in here):
                for at, character in zip(here, words, strict=True):
                    self._put(label, at, 0, character)
                return

    def _put(self, line: int, x: int, y: int, character: str) -> None:
        if not self._dots[y][x]:
            self._under[y][x] = character
            self.lines[y][x] = line

    def band(self, line: int, columns: Sequence[Bucket | None], to: Scale) -> None:
        """Fill the area between lows and highs."""
        for x, column in enumerate(columns):
            if column and column.high > column.low:
                self._stroke(line, x, self._row(to, column.low), self._row(to, column.high))

    def curve(self, line: int, columns: Sequence[Bucket | None], to: Scale, breaks: Sequence[int] = ()) -> None:
        """Draw a line through the means, with a break where values are missing for much longer than usual.

        Args:
            breaks: Columns in rising order, after which the line breaks in any case.
        """
        bridge = longest_bridge(columns)
        before: tuple[int, int] | None = None
        for x, column in enumerate(columns):
            if column is None:
                continue
            row = self._row(to, column.mean)
            joined = before is not None and bisect_left(breaks, before[0]) == bisect_left(breaks, x)
            if before is not None and joined and x - before[0] <= bridge:
                self._join(line, *before, x, row)
            else:
                self._stroke(line, x, row, row)
            before = (x, row)

    def _row(self, to: Scale, value: float) -> int:
        return round(max(0.0, min(1.0, to.share(value))) * (self.height * 4 - 1))

    def _join(self, line: int, x0: int, row0: int, x1: int, row1: int) -> None:
        middle = row0
        for x in range(x0 + 1, x1 + 1):
            row = row0 + round((row1 - row0) * (x - x0) / (x1 - x0))
            self._stroke(line, x, row if abs(row - middle) <= 1 else middle + (1 if row > middle else -1), row)
            middle = row

    def _stroke(self, line: int, x: int, low: int, high: int) -> None:
        if low > high:
            low, high = high, low
        cell, bits = x // 2, _BITS[x % 2]
        for row in range(low, high + 1):
            y = self.height - 1 - row // 4
            if self.lines[y][cell] != line:
                self.lines[y][cell] = line
                self._dots[y][cell] = 0
            self._dots[y][cell] |= bits[3 - row % 4]


def smooth(columns: Sequence[Bucket | None]) -> list[Bucket | None]:
    """Exponential moving averages, bias-corrected as in Adam (arXiv:1412.6980); lows and highs stay."""
    total = norm = 0.0
    weight = 0.85
    found: list[Bucket | None] = []
    for column in columns:
        if column is None:
            found.append(None)
            continue
        total = total * weight + column.mean * (1 - weight)
        norm = norm * weight + (1 - weight)
        found.append(Bucket(column.low, column.high, total / norm))
    return found


class Tick(NamedTuple):
    """A label of an axis."""

    share: float
    """0 at the left end, 1 at the right."""
    words: str


class AxisInterval(NamedTuple):
    """The interval between two places of an axis."""

    end: float
    """Unix time (s); the values shown are the newest before it."""
    words: str
    """The interval as text, such as `0:35, step 420`."""


class TimeAxis:
    """An axis from `begin` to `end`, in seconds since the run began; subclasses may use other units.

    Args:
        window: Length of the part shown, up to the newest value; None for the whole run.
        count: Number of columns.
    """

    SHORTEST: ClassVar[float] = 15.0
    """Minimum length of the whole axis, in its unit."""

    def __init__(self, snapshot: Snapshot, window: float | None, count: int) -> None:
        self._snapshot = snapshot
        self.count = count
        self.whole = max(self.SHORTEST, self._length())
        if window is None:
            self.begin, self.end = 0.0, self.whole if snapshot.over else self.rounded(self.whole)
        else:
            # A growing chart moves by whole columns only, so that values stay in their columns.
            column = window / max(1, count)
            self.end = -(-self._length() // column) * column
            self.begin = self.end - window

    def share(self, place: float) -> float:
        """The position of a place: 0 at the left end, 1 at the right."""
        return (place - self.begin) / (self.end - self.begin)

    def at(self, share: float) -> float:
        """The place at a share, the inverse of `share`."""
        return self.begin + share * (self.end - self.begin)

    @property
    def _began(self) -> float:
        began = self._snapshot.began
        return self._snapshot.now if began is None else began

    def _length(self) -> float:
        """The length of the run so far, in this axis' unit."""
        snapshot = self._snapshot
        return (snapshot.playback.end if snapshot.playback else snapshot.now) - self._began

    @staticmethod
    def rounded(length: float) -> float:
        """Round a length up, so that it stays the same for a while as the run grows."""
        return span(length)

    def pieces(self, track: Track) -> list[list[Bucket | None]]:
        """The columns of a track, one list for each line to draw."""
        began = self._began
        return [track.columns(began + self.begin, began + self.end, self.count, self._snapshot.now)]

    def place(self, time: float) -> float | None:
        """The place of a unix time, in this axis' unit; None if it has none."""
        return time - self._began

    def between(self, first: float, last: float) -> AxisInterval | None:
        """The interval between two places; None if it has no values yet."""
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
        """The unix time of a place, even if it is after the time shown; None if it has none."""
        return self._began + place

    def begun(self) -> dict[int, float]:
        """Attempt → the place where it begins, for all attempts but the first."""
        snapshot = self._snapshot
        return {
            attempt: begun - self._began
            for attempt, begun in sorted(snapshot.history.begun.copy().items())
            if attempt > 1 and begun <= snapshot.now
        }

    def ticks(self, room: int) -> list[Tick]:
        """Labels for `room` cells."""
        most = max(1, room // max(10, len(duration(self.end)) * 3 // 2 + 2))
        return [Tick(self.share(tick), duration(tick)) for tick in clock_ticks(self.begin, self.end, most)]

    @staticmethod
    def words(length: float) -> str:
        """A length of this axis as text."""
        return duration(length)


class StepAxis(TimeAxis):
    """An axis in steps; each attempt is a separate line, because it may repeat steps of an earlier one."""

    SHORTEST = 10.0

    def _length(self) -> float:
        return max((steps.last or 0.0 for steps in self._snapshot.history.steps.copy().values()), default=0.0)

    @staticmethod
    def rounded(length: float) -> float:
        return round_above(length)

    def _attempts(self) -> list[tuple[int, Track, float]]:
        """(attempt, its steps, when the next one begins) of every attempt that has logged a step by the time shown."""
        history, now = self._snapshot.history, self._snapshot.now
        known = [
            (attempt, steps) for attempt, steps in sorted(history.steps.copy().items()) if steps.at(now) is not None
        ]
        ends = [*(history.begun.get(attempt, math.inf) for attempt, _ in known[1:]), math.inf]
        # Before the first step, there is an end without an attempt.
        return [(attempt, steps, end) for (attempt, steps), end in zip(known, ends, strict=False)]

    def pieces(self, track: Track) -> list[list[Bucket | None]]:
        """A line for each attempt."""
        edges = [self.at(column / self.count) for column in range(self.count)]
        return [
            track.between([*(steps.when(edge, end) for edge in edges), end], self._snapshot.now)
            for _, steps, end in self._attempts()
        ]

    def place(self, time: float) -> float | None:
        """The step that the newest attempt had reached at a unix time; None before the first step."""
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
        """Attempt → the first step that it logs, for all attempts but the first."""
        return {attempt: first for attempt, steps, _ in self._attempts() if attempt > 1 and (first := steps.first)}

    def ticks(self, room: int) -> list[Tick]:
        most = max(1, room // max(10, len(f"{self.end:,.0f}") * 3 // 2 + 2))
        return [Tick(self.share(tick), f"{tick:,.0f}") for tick in step_ticks(self.begin, self.end, most)]

    @staticmethod
    def words(length: float) -> str:
        return f"{length:,.0f} steps"
