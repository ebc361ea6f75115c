"""A chart of one number over time, of all ranks together or of each."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from rich.style import Style
from textual.binding import BindingType
from textual.events import Click
from textual.message import Message
from textual.strip import Strip

from runner.show.numbers import duration
from runner.text import clean
from tui.feed import Snapshot
from tui.keys import VIEW, bind
from tui.metrics import Metric, available, plain
from tui.series import Column, Place, Track
from tui.theme import SERIES, SERIES_CLASSES
from tui.widgets.drawn import Drawn, Piece, cells, line
from tui.widgets.plot import Canvas, Scale, clock_ticks, scale, smooth, span

LINES = SERIES
"""Lines that can be told apart; beyond that all are drawn as a band."""
BAND = LINES
BESIDE = LINES + 1
MARK = LINES + 2
MARKED = LINES + 3
_QUIET = {BAND: "chart--band", MARK: "chart--axis", MARKED: "chart--label"}
LABELS = 10
"""Cells left of the axis."""
SHORTEST = 15.0


class Line(NamedTuple):
    """One line of a chart."""

    number: int
    """Of its colour, or BAND or BESIDE."""
    name: str
    track: Track


class Chart(Drawn):
    """The chosen metric with axes and units."""

    can_focus = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {"chart--axis", "chart--band", "chart--label", *SERIES_CLASSES}
    DEFAULT_CSS = """
    Chart {
        & > .chart--axis { color: $rule; }
        & > .chart--band { color: $rule; }
        & > .chart--label { color: $muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("chart.pick", "c,enter", "pick", "pick", "choose what this chart shows", group=VIEW),
        bind("chart.next", "right_square_bracket", "next(1)", "next", "the next metric", group=VIEW, show=False),
        bind("chart.before", "left_square_bracket", "next(-1)", "before", "the metric before", show=False),
        bind("chart.closer", "plus,equals_sign", "zoom(0.5)", "closer", "only the last half of the time shown"),
        bind("chart.wider", "minus", "zoom(2)", "wider", "twice the time"),
        bind("chart.log", "l", "log", "log", "logarithmic scale, or linear"),
        bind("chart.smooth", "m", "smooth", "smooth", "a moving mean, or the values themselves"),
        bind("chart.each", "a", "each", "per rank", "a line for each rank, host or GPU, or their mean"),
    ]

    class PickRequested(Message):
        """Another metric is to be chosen for `chart`."""

        def __init__(self, chart: Chart) -> None:
            super().__init__()
            self.chart = chart

    class Sought(Message):
        """The cursor of a replay is wanted at a time."""

        def __init__(self, time: float) -> None:
            super().__init__()
            self.time = time

    def __init__(self, index: int, id: str | None = None) -> None:
        super().__init__(id=id)
        self._index = index
        self.chosen: str | None = None
        """The metric, None: the one that this chart's place suggests."""
        self._log = self._smooth = self._each = False
        self._window: float | None = None
        self._snapshot: Snapshot | None = None
        self.rank: int | None = None
        """A rank whose line is drawn apart."""

    def show(self, snapshot: Snapshot) -> None:
        """Show another moment."""
        self._snapshot = snapshot
        self.redraw()

    def redraw(self) -> None:
        """Draw anew; the title first, for what is drawn while it is painted comes too late for the border."""
        self._say()
        super().redraw()

    @property
    def metric(self) -> Metric | None:
        """What is drawn."""
        if self._snapshot is None:
            return None
        metrics = available(self._snapshot.history)
        named = next((one for one in metrics if one.name == self.chosen), None)
        if named or self.chosen:
            return named
        beside = {one.beside for one in metrics if one.beside}
        offered = [one for one in metrics if one.name not in beside]
        return offered[self._index] if self._index < len(offered) else None

    def draw(self, width: int, height: int) -> list[Strip]:
        """Axes, labels, dots."""
        metric, snapshot = self.metric, self._snapshot
        if metric is None or snapshot is None:
            return [line([("no numbers yet", self.component("chart--label"))])] if height else []
        if width < 16 or height < 1:
            return []
        lines = self._lines(metric, snapshot)
        rows = height - 2 if height > 4 else height
        legend = len(lines) > 1 and rows > 4
        rows -= legend
        labels = LABELS
        begin, end = self._times(snapshot)
        canvas = Canvas(width - labels - 1, rows)
        count = canvas.width * 2
        drawn = [(one.number, one.track.columns(begin, end, count, snapshot.now)) for one in lines]
        if self._smooth:
            drawn = [(number, smooth(columns)) for number, columns in drawn]
        attempts = {
            min(count - 1, int((begun - begin) / (end - begin) * count)): attempt
            for attempt, begun in sorted(snapshot.history.begun.items())
            if attempt > 1 and begin <= begun <= min(end, snapshot.now)
        }
        limits = self._plot(canvas, drawn, sorted(attempts), binary=metric.binary)
        for column, attempt in attempts.items():
            canvas.mark(MARK, column // 2, MARKED, f"attempt {attempt}")
        values = limits.ticks(rows)
        written = zip(values.items(), metric.ticks(list(values.values())), strict=True)
        ticks = {row: words if len(words) < labels else plain(value) for (row, value), words in written}
        strips = [self._legend(sorted(lines, key=lambda one: one.number != BAND), width, labels)] if legend else []
        strips += [self._line(canvas, y, ticks.get(y, ""), labels) for y in range(rows)]
        if len(strips) < height:
            strips += self._time_axis(width, labels, begin, end, snapshot)
        return strips

    def _times(self, snapshot: Snapshot) -> tuple[float, float]:
        # Columns keep their times while a chart grows: nothing moves but by whole columns.
        now, began = snapshot.now, snapshot.began
        if snapshot.playback is not None:
            now = snapshot.playback.end
        if self._window is None:
            whole = max(SHORTEST, now - began)
            return began, began + (whole if self._over(snapshot) else span(whole))
        step = self._window / max(1, (self.size.width - 11) * 2)
        end = began + -(-(snapshot.now - began) // step) * step
        return end - self._window, end

    @staticmethod
    def _over(snapshot: Snapshot) -> bool:
        return snapshot.state.result is not None or snapshot.playback is not None

    def _lines(self, metric: Metric, snapshot: Snapshot) -> list[Line]:
        history = snapshot.history
        each = history.each[metric.name]
        if self._each and len(each) <= LINES:
            return [
                Line(number, _owner(metric, place, snapshot), each[place]) for number, place in enumerate(sorted(each))
            ]
        found = [Line(BAND, "mean" if self._each else metric.label, history.all[metric.name])]
        if metric.beside is not None and metric.beside in history.all:
            found.insert(0, Line(BESIDE, metric.beside.replace("_", " "), history.all[metric.beside]))
        if self._each and self.rank is not None and self.rank in each:
            found.append(Line(2, f"rank {self.rank}", each[self.rank]))
        return found

    def _legend(self, lines: list[Line], width: int, labels: int) -> Strip:
        pieces: list[Piece] = [" " * (labels + 1)]
        for place, one in enumerate(lines):
            more = f"  +{len(lines) - place - 1}" if place < len(lines) - 1 else ""
            if cells(pieces) + cells([one.name]) + 4 + len(more) > width:
                pieces.append((f"+{len(lines) - place}", self.component("chart--label")))
                break
            colour = self._colour(0 if one.number == BAND else one.number)
            pieces += [("━ ", colour), (f"{one.name}  ", self.component("chart--label"))]
        return line(pieces)

    def _plot(
        self, canvas: Canvas, drawn: list[tuple[int, list[Column | None]]], breaks: list[int], *, binary: bool
    ) -> Scale:
        kept = [[column for column in columns if column] for _, columns in drawn]
        means = [column.mean for columns in kept for column in columns]
        spread = [value for columns in kept for column in columns for value in (column.low, column.high)]
        limits = scale(means if self._smooth else spread, log=self._log, binary=binary)
        for number, columns in drawn:
            if number == BAND:
                canvas.band(BAND, columns, limits)
        for number, columns in drawn:
            canvas.curve(0 if number == BAND else number, columns, limits, lambda column: column.mean, breaks)
        return limits

    def _line(self, canvas: Canvas, y: int, tick: str, labels: int) -> Strip:
        axis, label = self.component("chart--axis"), self.component("chart--label")
        pieces: list[Piece] = [(f"{tick:>{labels - 1}} ", label), ("┤" if tick else "│", axis)]
        row, lines = canvas.text(y), canvas.lines[y]
        start = 0
        for x in range(1, canvas.width + 1):
            if x == canvas.width or lines[x] != lines[start]:
                pieces.append((row[start:x], self._colour(lines[start])))
                start = x
        return line(pieces)

    def _colour(self, number: int) -> Style:
        if number in _QUIET:
            return self.component(_QUIET[number])
        return self.component(f"series--{1 if number == BESIDE else number % SERIES}") if number >= 0 else Style.null()

    def _time_axis(self, width: int, labels: int, begin: float, end: float, snapshot: Snapshot) -> list[Strip]:
        room = width - labels - 1
        longest = len(duration(end - snapshot.began))
        most = max(1, room // max(10, longest * 3 // 2 + 2))
        ruler, words, free = ["─"] * room, [" "] * room, 0
        for tick in clock_ticks(begin - snapshot.began, end - snapshot.began, most):
            x = min(room - 1, round((tick + snapshot.began - begin) / (end - begin) * room))
            ruler[x] = "┬"
            text = duration(tick)
            start = max(0, min(room - len(text), x - len(text) // 2))
            if start >= free:
                words[start : start + len(text)] = text
                free = start + len(text) + 1
        if snapshot.playback is not None and begin <= snapshot.now <= end:
            ruler[min(room - 1, int((snapshot.now - begin) / (end - begin) * room))] = "▲"
        axis, label = self.component("chart--axis"), self.component("chart--label")
        return [
            line([" " * labels, ("└" + "".join(ruler), axis)]),
            line([(" " * (labels + 1) + "".join(words), label)]),
        ]

    def _say(self) -> None:
        metric, snapshot = self.metric, self._snapshot
        if metric is None or snapshot is None:
            self.set_title("")
            return
        track = snapshot.history.all[metric.name]
        value = track.at(snapshot.now)
        words = [metric.label, *([metric.words(value)] if value is not None else [])]
        if metric.beside in snapshot.history.all and metric.beside is not None:
            other = snapshot.history.all[metric.beside].at(snapshot.now)
            words += [f"val {metric.words(other)}"] if other is not None else []
        count = len(snapshot.history.each[metric.name])
        how = ["log"] if self._log else []
        how += ["smooth"] if self._smooth else []
        how += [f"last {duration(self._window)}"] if self._window else []
        if count > 1:
            how.append(
                f"each of {count} {metric.per}s" if self._each and count <= LINES else f"mean of {count} {metric.per}s"
            )
        self.set_title("  ".join(words), " · ".join(how))

    def on_click(self, event: Click) -> None:
        """Move a replay's cursor to the pointer."""
        offset, snapshot, room = event.get_content_offset(self), self._snapshot, self.size.width - LABELS - 1
        if offset is None or snapshot is None or snapshot.playback is None or self.metric is None:
            return
        if 0 <= (x := offset.x - LABELS - 1) < room:
            begin, end = self._times(snapshot)
            self.post_message(self.Sought(begin + (x + 0.5) / room * (end - begin)))

    def action_pick(self) -> None:
        """Let the screen offer what there is."""
        self.post_message(self.PickRequested(self))

    def action_next(self, by: int) -> None:
        """Take the next metric."""
        if self._snapshot is None:
            return
        names = [one.name for one in available(self._snapshot.history)]
        now = self.metric
        if names:
            self.chosen = names[(names.index(now.name) + by) % len(names) if now else 0]
            self.redraw()

    def action_zoom(self, by: float) -> None:
        """Show less time, or more."""
        if self._snapshot is None:
            return
        whole = max(SHORTEST, self._snapshot.now - self._snapshot.began)
        wanted = (self._window or span(whole)) * by
        self._window = None if wanted >= whole else max(SHORTEST, wanted)
        self.redraw()

    def action_log(self) -> None:
        """Switch the scale."""
        self._log = not self._log
        self.redraw()

    def action_smooth(self) -> None:
        """Smooth, or not."""
        self._smooth = not self._smooth
        self.redraw()

    def action_each(self) -> None:
        """Each by itself, or all together."""
        self._each = not self._each
        self.redraw()


def _owner(metric: Metric, place: Place, snapshot: Snapshot) -> str:
    """Whose number a line is: `rank 3`, `node1`, `node1 GPU 0`."""
    if metric.per == "rank":
        return f"rank {place}"
    node, gpu = place if isinstance(place, tuple) else (place, None)
    name = clean(snapshot.state.hosts[node].name)[:20]
    return name if gpu is None else f"{name} GPU {gpu}"
