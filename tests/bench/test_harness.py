"""The harness counts right; the benchmarks stand on it."""

from __future__ import annotations

from collections.abc import Callable

from tests.bench.harness import HEAD, Comparison, compare, percentile


def test_runs_are_interleaved_and_warm_ups_do_not_count() -> None:
    """A B, then B A: neither is always first."""
    order = ""

    def measure(letter: str, figure: float) -> Callable[[], float]:
        def once() -> float:
            nonlocal order
            order += letter
            return figure

        return once

    done = compare("start", "s", measure("a", 3.0), measure("b", 2.0), runs=4)
    assert order == "baabbaabba"
    assert (done.subject, done.yardstick) == ((3.0,) * 4, (2.0,) * 4)
    assert done.ratio == 1.5
    assert done.interval() == (1.5, 1.5)


def test_interval_covers_the_ratio_and_narrows() -> None:
    """More figures of the same spread say more; the same figures say the same."""
    few = Comparison("x", "s", (0.9, 1.0, 1.1, 1.0, 1.2), (1.0, 0.8, 1.1, 1.0, 0.9))
    many = Comparison("x", "s", few.subject * 20, few.yardstick * 20)
    low, high = few.interval()
    assert low < few.ratio < high
    assert many.interval()[1] - many.interval()[0] < high - low
    assert few.interval() == (low, high)


def test_percentile_by_nearest_rank() -> None:
    """The 99th of a hundred is the 99th; of few figures it is the largest."""
    hundred = list(range(1, 101))
    assert percentile(hundred, 0.99) == 99
    assert percentile(hundred, 0.5) == 50
    assert percentile([3, 1, 2], 0.99) == 3
    assert percentile([7], 0) == 7


def test_row_fits_the_head() -> None:
    """A table that renders."""
    row = Comparison("start", "s", (3.5, 3.0, 4.0), (3.0, 3.0, 3.0)).row()
    assert row == "| start | 3.5 (3 to 4) s | 3 (3 to 3) s | **1.17** (1.00 to 1.33) | 3 |"
    assert {line.count("|") for line in HEAD.splitlines()} == {row.count("|")}
