"""Lines in braille dots with axes: two columns and four rows of dots in every cell. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tui.run.series import Bucket

_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
SPANS = (
    10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600, 900, 1200, 1800, 2700, 3600, 5400, 7200, 10800, 14400,
    21600, 28800, 43200, 57600, 86400,
)  # fmt: skip
"""Spans of time that divide into round ticks (s)."""
STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
)  # fmt: skip
"""Distances of ticks that are round on a clock (s)."""
CLOSE = 0.35
"""A logarithmic scale has linear ticks if the lowest value is at least this share of the highest."""
_TINY = 1e-300
"""What is nearer to zero is drawn as zero: a quarter of it may be none that a float can hold."""
BRIDGE = 4
"""A line bridges this many columns without values, or this many times the usual distance between values."""


class Scale(NamedTuple):
    """Maps values to rows of dots."""

    low: float
    high: float
    marks: tuple[float, ...]
    """Round values that may have a label, rising."""
    log: bool
    """Whether `low` and `high` are logarithms."""

    def share(self, value: float) -> float:
        """0 at the bottom, 1 at the top."""
        if self.log:
            value = math.log10(value) if value > 0 else self.low
        return (value - self.low) / (self.high - self.low)

    def ticks(self, rows: int) -> dict[int, float]:
        """Row of cells from the top → the value to write there."""
        most = (rows - 1) // 2 + 1
        return {rows - 1 - round(self.share(value) * (rows * 4 - 1)) // 4: value for value in self._fitting(most)}

    def _fitting(self, most: int) -> Sequence[float]:
        if self.log and len(self.marks) > most:
            # Of 1, 2, 5, 10 … only the decades, so that labels stay evenly spaced.
            decades = [value for value in self.marks if _is_decade(value)]
            if len(decades) > 1:
                return decades[:: math.ceil(len(decades) / most)]
        return self.marks[:: math.ceil((len(self.marks) - 1) / max(1, most - 1)) or 1]


def scale(values: Sequence[float], *, log: bool, binary: bool = False) -> Scale:
    """A scale that contains all values and stays the same while they change a little.

    Args:
        binary: The values count bytes: ticks are round in the unit of the largest.
    """
    values = [value if abs(value) > _TINY else 0.0 for value in values]
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
        marks = _multiples(low, high, round_above((high - low) / 4 or high / 4))
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
    """The next number of 1, 2, 2.5, 5 and their decades."""
    power = float(10 ** math.floor(math.log10(rough)))
    return next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * 0.999)


def step_ticks(begin: float, end: float, most: int) -> list[float]:
    """At most `most` round numbers of steps from `begin` to `end`."""
    every = max(1.0, round_above((end - begin) / max(1, most)))
    every = every if every.is_integer() else every * 2
    return [tick * every for tick in range(math.ceil(begin / every - 1e-9), math.floor(end / every + 1e-9) + 1)]


def span(seconds: float) -> float:
    """The next longer span that divides well, so that a growing chart does not rescale all the time."""
    return next((float(one) for one in SPANS if one >= seconds), math.ceil(seconds / 86400) * 86400.0)


def clock_ticks(begin: float, end: float, most: int) -> list[float]:
    """At most `most` round times from `begin` to `end` (s since the run began)."""
    rough = (end - begin) / max(1, most)
    step = next((float(one) for one in STEPS if one >= rough), math.ceil(rough / 86400) * 86400.0)
    first = math.ceil(begin / step - 1e-9)
    return [tick * step for tick in range(first, math.floor(end / step + 1e-9) + 1)]


def longest_bridge(columns: Sequence[Bucket | None]) -> int:
    """The most columns between two values that a line joins; a longer gap breaks it."""
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

    def rule(self, line: int, x: int, over: int) -> None:
        """Draw a vertical line behind all lines except `over`."""
        for y in range(self.height):
            if self.lines[y][x] == over:
                self._dots[y][x] = 0
            self._put(line, x, y, "│")

    def mark(self, line: int, x: int, label: int, words: str) -> None:
        """Draw a vertical line behind what is drawn already, with words in the colour of `label` beside its top."""
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
        """Fill between low and high."""
        for x, column in enumerate(columns):
            if column and column.high > column.low:
                self._stroke(line, x, self._row(to, column.low), self._row(to, column.high))

    def curve(
        self,
        line: int,
        columns: Sequence[Bucket | None],
        to: Scale,
        value: Callable[[Bucket], float],
        breaks: Sequence[int] = (),
    ) -> None:
        """Draw a line through the columns, with a break where values are missing for much longer than usual.

        Args:
            breaks: Columns, rising, after which the line breaks in any case.
        """
        bridge = longest_bridge(columns)
        before: tuple[int, int] | None = None
        for x, column in enumerate(columns):
            if column is None:
                continue
            row = self._row(to, value(column))
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


def smooth(columns: Sequence[Bucket | None], weight: float = 0.85) -> list[Bucket | None]:
    """Exponentially weighted means, corrected for the start; lows and highs stay."""
    total = norm = 0.0
    found: list[Bucket | None] = []
    for column in columns:
        if column is None:
            found.append(None)
            continue
        total = total * weight + column.mean * (1 - weight)
        norm = norm * weight + (1 - weight)
        found.append(Bucket(column.low, column.high, total / norm))
    return found
