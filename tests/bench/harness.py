"""Interleaved comparisons: A and B in turn, so that a machine that gets busier hurts both alike."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Measure = Callable[[], float]
"""One measurement: does the work once and returns its figure."""


@dataclass(frozen=True)
class Comparison:
    """The figures of a subject and of its yardstick, in the order they were taken."""

    name: str
    unit: str
    subject: tuple[float, ...]
    yardstick: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median of the subject over the median of the yardstick."""
        return statistics.median(self.subject) / statistics.median(self.yardstick)

    def interval(self, level: float = 0.95, samples: int = 5000) -> tuple[float, float]:
        """Return the percentile bootstrap interval of the ratio (Efron 1979). The same figures give the same answer."""
        dice = random.Random(1)
        ratios = sorted(
            statistics.median(dice.choices(self.subject, k=len(self.subject)))
            / statistics.median(dice.choices(self.yardstick, k=len(self.yardstick)))
            for _ in range(samples)
        )
        tail = (1 - level) / 2
        return ratios[int(tail * samples)], ratios[min(samples - 1, int((1 - tail) * samples))]

    def row(self) -> str:
        """Return one row of the table of which `HEAD` is the head."""
        low, high = self.interval()
        return (
            f"| {self.name} | {_figures(self.subject)} {self.unit} | {_figures(self.yardstick)} {self.unit} "
            f"| **{self.ratio:.2f}** ({low:.2f} to {high:.2f}) | {len(self.subject)} |"
        )


HEAD = """\
| what | disttui, median (range) | by hand, median (range) | ratio (95 % interval) | runs |
|---|---|---|---|---|"""


def compare(name: str, unit: str, subject: Measure, yardstick: Measure, *, runs: int, warm_ups: int = 1) -> Comparison:
    """Measure both in turn, `runs` times each, after `warm_ups` of each that do not count.

    Which goes first changes from round to round, so that neither always finds the caches of the other.
    """
    taken: dict[Measure, list[float]] = {subject: [], yardstick: []}
    for turn in range(-warm_ups, runs):
        for measure in (subject, yardstick) if turn % 2 == 0 else (yardstick, subject):
            figure = measure()
            if turn >= 0:
                taken[measure].append(figure)
    return Comparison(name, unit, tuple(taken[subject]), tuple(taken[yardstick]))


def percentile(figures: Sequence[float], share: float) -> float:
    """Return the smallest figure that at least `share` (0 to 1) of all do not exceed (nearest rank)."""
    ordered = sorted(figures)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]


def _figures(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.3g} ({min(figures):.3g} to {max(figures):.3g})"
