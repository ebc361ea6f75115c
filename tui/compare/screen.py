"""The comparison of runs: their losses in one chart, above their differences."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

from textual import work
from textual.binding import BindingType
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget

from disttui.runner.api.comparing import SECTIONS, Comparison, MetricCurve, compare, curve_of
from disttui.runner.errors import DisttuiError
from disttui.runner.formatting import amount, duration, figure
from disttui.runner.ids import short
from disttui.runner.runs.registry import KnownRun
from disttui.runner.text import clean
from disttui.tui.charts.chart import LABELS, LOOK_KEYS, Framed
from disttui.tui.charts.plot import Canvas, Scale, clock_ticks, scale, smooth, step_ticks
from disttui.tui.run.series import Bucket
from disttui.tui.screen import DisttuiScreen
from disttui.tui.theme import SERIES
from disttui.tui.widgets.drawn import Piece, cells, line
from disttui.tui.widgets.points import Pages, Point

LETTERS = "abcdefgh"
"""Letters that mark each run's line and values, in case colours are not visible; as many as SERIES."""
_AGAIN = 5.0
"""Seconds between two reads of the losses of running runs."""


class ComparedRun(NamedTuple):
    """A run of the comparison, with its losses."""

    run: KnownRun
    curve: MetricCurve

    @property
    def best(self) -> float:
        """The lowest loss; inf without any."""
        return min(self.curve.values, default=float("inf"))


class Curves(Framed):
    """A chart of the losses of all runs, each line with its letter."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: Sequence[ComparedRun] = ()
        self.by_step = True

    def show(self, runs: Sequence[ComparedRun]) -> None:
        """Draw the losses of these runs."""
        self._runs = runs
        self.redraw()

    def redraw(self) -> None:
        """Redraw, with the kinds of axes in the title."""
        how = ["by step" if self.by_step else "by time", *["log"] * self.log_scale, *["smooth"] * self.smoothed]
        self.set_title("loss of rank 0", " · ".join(how))
        super().redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Draw the legend, the lines and the axes."""
        label = self.component("muted")
        legend = list(self._legend(width))
        rows, room = height - len(legend) - 2, width - LABELS - 1
        if not any(one.curve.values for one in self._runs):
            return [*legend, line([("  no losses recorded", label)])]
        if rows < 2 or room < 8:
            return legend
        places = [one.curve.steps if self.by_step else one.curve.times for one in self._runs]
        begin, end = 0.0, max((one[-1] for one in places if one), default=1.0) or 1.0
        canvas = Canvas(room, rows)
        edges = [begin + (end - begin) * column / (2 * room) for column in range(2 * room + 1)]
        edges[-1] *= 1 + 1e-9  # so that the last value is in the last column
        drawn = [_columns(at, one.curve.values, edges) for at, one in zip(places, self._runs, strict=True)]
        if self.smoothed:
            drawn = [smooth(columns) for columns in drawn]
        limits = scale([column.mean for columns in drawn for column in columns if column], log=self.log_scale)
        for number, columns in enumerate(drawn):
            canvas.curve(number, columns, limits)
        for number, columns in enumerate(drawn):
            self._letters(canvas, number, columns, limits)
        ticks = {row: figure(value) or "" for row, value in limits.ticks(rows).items()}
        plot = (self.framed(canvas, y, ticks.get(y, "")) for y in range(rows))
        return [*legend, *plot, *self.ruler(self._ticks(begin, end, room), room)]

    def _letters(self, canvas: Canvas, number: int, columns: Sequence[Bucket | None], limits: Scale) -> None:
        """Write a run's letter on its line, at its end and away from other letters."""
        known = [x for x, column in enumerate(columns) if column]
        every = max(16, len(columns) // 4)
        first = every * (number + 1) // (len(self._runs) + 1)
        for x in {*known[-1:], *(known[bisect_left(known, at)] for at in range(first, (known or [0])[-1], every))}:
            if column := columns[x]:
                canvas.letter(number, x, column.mean, limits, LETTERS[number])

    def _legend(self, width: int) -> Iterator[Strip]:
        label, best = self.component("muted"), min((one.best for one in self._runs), default=0.0)
        for number, one in enumerate(self._runs):
            colour, curve = self.component(f"series--{number}"), one.curve
            pieces: list[Piece] = [(f" {LETTERS[number]} ━ ", colour), short(one.run.run)]
            if curve.values:
                at = curve.steps[curve.values.index(one.best)]
                words = f"  {figure(curve.values[-1])} at step {curve.steps[-1]:,.0f} after {duration(curve.times[-1])}"
                words += (
                    f", lowest {figure(one.best)} at step {at:,.0f}" if cells([*pieces, words]) + 34 < width else ""
                )
                pieces.append((words, label))
                if one.best == best and len(self._runs) > 1:
                    pieces.append(("  best", self.component("strong") + colour))
            yield line(pieces)

    def _ticks(self, begin: float, end: float, room: int) -> Iterator[tuple[float, str]]:
        most = max(1, room // 14)
        for tick in step_ticks(begin, end, most) if self.by_step else clock_ticks(begin, end, most):
            yield (tick - begin) / (end - begin), f"{tick:,.0f}" if self.by_step else duration(tick)


def _columns(places: Sequence[float], values: Sequence[float], edges: Sequence[float]) -> list[Bucket | None]:
    """Low, high and mean of the values between each edge and the next; None where there are none."""
    found: list[Bucket | None] = []
    first = 0
    for edge in edges[1:]:
        last = bisect_left(places, edge, first)
        part = values[first:last]
        found.append(Bucket(min(part), max(part), sum(part) / len(part)) if part else None)
        first = last
    return found


class CompareScreen(DisttuiScreen):
    """Compares runs with the first of them.

    Args:
        runs: The ids of the runs.
    """

    HELP = """Runs side by side. Above, the loss of each in one chart, the lowest marked as best; a letter marks each
    run on its line and before its values. Below, their differences, as in `disttui runs diff`."""
    BINDINGS: ClassVar[list[BindingType]] = [*LOOK_KEYS]
    DEFAULT_CSS = """
    CompareScreen Curves { height: 3fr; padding: 0 1; }
    CompareScreen #differences { height: 2fr; padding: 0 1; }
    """
    AUTO_FOCUS = "#differences"

    def __init__(self, runs: Sequence[str]) -> None:
        super().__init__()
        self._names = runs[:SERIES]
        self._left_out = len(runs) - len(self._names)
        self._runs: Sequence[ComparedRun] = ()

    def body(self) -> Iterable[Widget]:
        """Yield the chart and the differences."""
        curves, pages = Curves(), Pages(id="differences")
        for pane in (curves, pages):
            pane.add_class("pane")
        pages.border_title = "Differences"
        yield curves
        yield pages

    def on_mount(self) -> None:
        """Compare the runs in a worker, which queries the hosts, and update the chart regularly."""
        self.header.show("compare", [amount(len(self._names), "run")])
        if self._left_out:
            self.notify(f"only the first {SERIES} of the marked runs are compared", severity="warning")
        self._compare()
        self.set_interval(_AGAIN, self._look)

    @work(group="compare")
    async def _compare(self) -> None:
        pages = self.query_one("#differences", Pages)
        pages.show([Point("asking the hosts for missing data", "$muted")])
        try:
            runs = await asyncio.to_thread(self._found)
            self._take(await asyncio.to_thread(_curves, runs))
            found = await asyncio.to_thread(self._compared, runs)
        except DisttuiError as error:
            pages.show([Point(str(error), "$state-failed")])
            return
        pages.show(difference_points(found))
        self._look()

    def _found(self) -> list[KnownRun]:
        from disttui.runner.api.finding import find_run

        return [find_run(self.disttui.viewer(), name) for name in self._names]

    def _compared(self, runs: Sequence[KnownRun]) -> list[Comparison]:
        return [compare(self.disttui.viewer(), runs[0], other) for other in runs[1:]]

    @work(group="look", exclusive=True)
    async def _look(self) -> None:
        if self._runs:
            self._take(await asyncio.to_thread(_curves, [one.run for one in self._runs]))

    def _take(self, runs: Sequence[ComparedRun]) -> None:
        self._runs = runs
        best = min((one for one in runs if one.curve.values), key=lambda one: one.best, default=None)
        self.header.show("compare", [amount(len(runs), "run"), *([f"best {short(best.run.run)}"] if best else [])])
        self.query_one(Curves).show(runs)

    def action_switch(self, what: str) -> None:
        self.query_one(Curves).action_switch(what)


def _curves(runs: Sequence[KnownRun]) -> list[ComparedRun]:
    return [ComparedRun(run, curve_of(run)) for run in runs]


def difference_points(found: Sequence[Comparison]) -> Iterator[Point]:
    """Yield a line for each value that differs between the runs; all of `found` compare with the same run."""
    same = []
    for section in SECTIONS:
        values: dict[str, list[str | None]] = {}
        """Key → its values: of the first run, and where they differ from it, of the others."""
        for at, comparison in enumerate(found):
            for key, before, after in ((one.key, one.before, one.after) for one in comparison.of(section)):
                values.setdefault(key, [before] * (len(found) + 1))[at + 1] = after
        if not values:
            same.append(section)
            continue
        yield Point(section, "bold")
        width = min(32, max(len(key) for key in values))
        for key, each in values.items():
            texts = [
                Content.assemble(
                    (f"{letter} ", f"bold $series-{number}"), clean("nothing" if one is None else one or "''")
                )
                for number, (letter, one) in enumerate(zip(LETTERS, each, strict=False))
            ]
            yield Point(Content("  ").join(texts), mark=f"  {clean(key):<{width}}  ", mark_style="$muted")
    for comparison in found if len(found) == 1 else ():
        yield from (Point(text, "$muted", "  ") for text in comparison.changes)
    unknown = dict.fromkeys(short(run) for comparison in found for run in comparison.unknown)
    if unknown:
        words = "command, code, versions and hosts were not recorded, so they are not compared"
        yield Point(f"{', '.join(unknown)}: {words}", "$state-slow", "▲ ")
    known = [section for section in same if not unknown or section in ("profile", "result")]
    if known:
        yield Point(f"the same: {', '.join(known)}", "$muted")
