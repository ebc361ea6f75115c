"""A chart of one metric over time, for all ranks together or for each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from rich.style import Style
from textual.binding import BindingType
from textual.events import Click, Leave, MouseEvent, MouseMove
from textual.message import Message
from textual.strip import Strip

from disttui.runner.render.waiting import stage
from disttui.runner.text import clean
from disttui.tui.charts.plot import AxisInterval, Canvas, Scale, StepAxis, TimeAxis, longest_bridge, scale, smooth
from disttui.tui.keys import MOVE, VIEW, bind
from disttui.tui.run.feed import Snapshot
from disttui.tui.run.series import Bucket, Metric, Place, Track, available, charted, plain
from disttui.tui.theme import SERIES
from disttui.tui.widgets.drawn import Drawn, Piece, cells, line, wrapped

LINES = SERIES
"""Maximum number of lines with distinct colours; more are drawn as a band."""
BAND = LINES
BESIDE = LINES + 1
MARK = LINES + 2
MARKED = LINES + 3
_QUIET = {BAND: "faint", MARK: "rule", MARKED: "muted"}
LABELS = 10
"""Cells to the left of the axis."""


LOOK_KEYS = (
    bind("chart.steps", "b", "switch('by_step')", "by step", "by step, or by time"),
    bind("chart.log", "l", "switch('log_scale')", "log", "logarithmic scale, or linear"),
    bind("chart.smooth", "m", "switch('smoothed')", "smooth", "moving mean, or plain values"),
)
"""Keys that change how lines are drawn."""


class ChartLine(NamedTuple):
    """One line of a chart."""

    number: int
    """The number of its colour, or BAND or BESIDE."""
    name: str
    track: Track


class Sought(Message):
    """Requests to move the cursor of a replay to a moment (unix time, s)."""

    def __init__(self, moment: float) -> None:
        super().__init__()
        self.moment = moment


class Framed(Drawn):
    """A plot between its axes."""

    by_step = log_scale = smoothed = each = False
    """How lines are drawn; `each` means a line for each rank, host or GPU."""

    def action_switch(self, what: str) -> None:
        """Change how lines are drawn, or back."""
        setattr(self, what, not getattr(self, what))
        self.redraw()

    def framed(self, canvas: Canvas, y: int, tick: str) -> Strip:
        """A row of the plot, after the axis at its left with the label of a tick."""
        pieces: list[Piece] = [(f"{tick:>{LABELS - 1}} ", self.component("muted"))]
        pieces.append(("┤" if tick else "│", self.component("rule")))
        return line([*pieces, *((text, self.colour(number)) for number, text in canvas.pieces(y))])

    def ruler(self, ticks: Iterable[tuple[float, str]], room: int, cursor: float = -1.0) -> list[Strip]:
        """The axis below the plot and its labels, as far as they fit; ticks and cursor are shares of the axis."""
        ruler, words, free = ["─"] * room, [" "] * room, 0
        for share, text in ticks:
            x = min(room - 1, round(share * room))
            ruler[x] = "┬"
            start = max(0, min(room - len(text), x - len(text) // 2))
            if start >= free and len(text) <= room:
                words[start : start + len(text)] = text
                free = start + len(text) + 1
        if 0 <= cursor <= 1:
            ruler[min(room - 1, int(cursor * room))] = "▲"
        quiet, label = self.component("rule"), self.component("muted")
        before, mark, after = "".join(ruler).partition("▲")
        return [
            line([" " * LABELS, (f"└{before}", quiet), (mark, label), (after, quiet)]),
            line([(" " * (LABELS + 1) + "".join(words), label)]),
        ]

    def colour(self, number: int) -> Style:
        """The colour of a line or mark of the canvas."""
        if number in _QUIET:
            return self.component(_QUIET[number])
        return self.component(f"series--{1 if number == BESIDE else number % SERIES}") if number >= 0 else Style.null()


class Chart(Framed):
    """The chosen metric with axes and units."""

    can_focus = True
    FOOTER_KEYS: ClassVar[int] = 1
    """Number of its keys that the footer shows before those of the screen."""
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("chart.pick", "c,enter", "pick", "pick", "choose what this chart shows", group=VIEW),
        bind("chart.next", "right_square_bracket", "next(1)", "next", "next metric", group=VIEW, show=False),
        bind("chart.before", "left_square_bracket", "next(-1)", "before", "previous metric", show=False),
        bind("chart.left", "left", "cursor(-1)", "left", "move the cursor left", group=MOVE, show=False),
        bind("chart.right", "right", "cursor(1)", "values", "show values at a cursor; move it right"),
        bind("chart.no_cursor", "escape", "no_cursor", "no cursor", "newest values", show=False),
        LOOK_KEYS[0],
        bind("chart.closer", "plus,equals_sign", "zoom(0.5)", "closer", "zoom in on the last half"),
        bind("chart.wider", "minus", "zoom(2)", "wider", "zoom out"),
        *LOOK_KEYS[1:],
        bind("chart.each", "a", "switch('each')", "per rank", "a line per rank, host or GPU, or their mean"),
    ]

    class PickRequested(Message):
        """Requests the list of metrics for `chart`."""

        def __init__(self, chart: Chart) -> None:
            super().__init__()
            self.chart = chart

    def __init__(self, index: int, id: str | None = None) -> None:
        super().__init__(id=id)
        self._index = index
        self.chosen: str | None = None
        """The name of the chosen metric; None for the default at this chart's position."""
        self._window: float | None = None
        """Length of the part shown, up to the newest value, in seconds or steps; None for the whole run."""
        self._cursor: float | None = None
        """The place of the cursor, in seconds or steps from the beginning."""
        self._pointer: float | None = None
        """The place of the mouse pointer, which takes precedence over the cursor."""
        self._snapshot: Snapshot | None = None
        self.rank: int | None = None
        """The rank whose line is highlighted, if any."""

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.redraw()

    def redraw(self) -> None:
        """Redraw; set the title first, because a change during painting is too late for the border."""
        self._show_title()
        super().redraw()

    @property
    def metric(self) -> Metric | None:
        """The metric that is drawn; None if it has no values, or until it is known when the run began."""
        if self._snapshot is None or self._snapshot.began is None:
            return None
        if self.chosen:
            return next((one for one in available(self._snapshot.history) if one.name == self.chosen), None)
        offered = charted(self._snapshot.history)
        return offered[self._index] if self._index < len(offered) else None

    def draw(self, width: int, height: int) -> list[Strip]:
        metric, snapshot = self.metric, self._snapshot
        if metric is None or snapshot is None:
            return self._empty(snapshot, width) if height else []
        if width < 16 or height < 1:
            return []
        lines = self._lines(metric, snapshot)
        rows = height - 2 if height > 4 else height
        legend = len(lines) > 1 and rows > 4
        rows -= legend
        canvas = Canvas(width - LABELS - 1, rows)
        axis = self._axis(snapshot, canvas.width)
        drawn = [(one.number, piece) for one in lines for piece in axis.pieces(one.track)]
        if self.smoothed:
            drawn = [(number, smooth(columns)) for number, columns in drawn]
        shares = {attempt: axis.share(place) for attempt, place in axis.begun().items()}
        breaks = {int(share * axis.count): attempt for attempt, share in shares.items() if 0 <= share < 1}
        limits = self._plot(canvas, drawn, [] if self.by_step else sorted(breaks), metric)
        for column, attempt in breaks.items():
            canvas.mark(MARK, column // 2, MARKED, f"attempt {attempt}")
        cell = self._cell(axis, canvas.width)
        if cell is not None:
            canvas.rule(MARKED, cell, BAND)
        # Without values, the labels of the scale would be meaningless.
        values = limits.ticks(rows) if any(any(columns) for _, columns in drawn) else {}
        written = zip(values.items(), metric.ticks(list(values.values())), strict=True)
        ticks = {row: words if len(words) < LABELS else plain(value) for (row, value), words in written}
        in_order = sorted(lines, key=lambda one: one.number != BAND)
        strips = [self._legend(in_order, width, axis)] if legend else []
        strips += [self.framed(canvas, y, ticks.get(y, "")) for y in range(rows)]
        if len(strips) < height:
            now = axis.place(snapshot.now) if snapshot.playback is not None else None
            strips += self.ruler(axis.ticks(canvas.width), canvas.width, -1.0 if now is None else axis.share(now))
        return strips

    def _empty(self, snapshot: Snapshot | None, width: int) -> list[Strip]:
        """Draw the reason why there are no values."""
        words = "No numbers yet"
        if snapshot is not None:
            yet = "" if snapshot.state.result is not None else " yet"
            words = f"No numbers{yet}: {stage(snapshot.state)}"
        quiet = self.component("muted")
        return [Strip([]), *(line([(text, quiet)]) for text in wrapped([f"  {words}"], max(10, width)))]

    def _axis(self, snapshot: Snapshot, room: int) -> TimeAxis:
        return (StepAxis if self.by_step else TimeAxis)(snapshot, self._window, max(1, room) * 2)

    @property
    def _room(self) -> int:
        """Cells between the left axis and the right border."""
        return self.size.width - LABELS - 1

    def _cell(self, axis: TimeAxis, room: int) -> int | None:
        """The column (in cells) of the pointer or cursor; None if it is not in the part shown."""
        place = self._cursor if self._pointer is None else self._pointer
        share = -1.0 if place is None else axis.share(place)
        return min(room - 1, int(share * room)) if 0 <= share <= 1 else None

    def _at(self, axis: TimeAxis) -> AxisInterval | None:
        """The interval of the axis at the cursor; None without a cursor, or if it has no values yet."""
        room = axis.count // 2
        cell = self._cell(axis, room)
        return None if cell is None else axis.between(axis.at(cell / room), axis.at((cell + 1) / room))

    def _value(self, track: Track, axis: TimeAxis, at: AxisInterval) -> float | None:
        """The value of a line at the cursor; None if it has none there."""
        cell = self._cell(axis, axis.count // 2) or 0
        for piece in axis.pieces(track):
            last = 2 * cell + 2
            if any(piece[max(0, last - longest_bridge(piece)) : last]):
                return track.at(math.nextafter(at.end, -math.inf))
        return None

    def _lines(self, metric: Metric, snapshot: Snapshot) -> list[ChartLine]:
        history = snapshot.history
        each = history.each[metric.name]
        if self.each and len(each) <= LINES:
            return [
                ChartLine(number, _owner(metric, place, snapshot), each[place])
                for number, place in enumerate(sorted(each))
            ]
        found = [ChartLine(BAND, "mean" if self.each else metric.label, history.all[metric.name])]
        if metric.beside is not None and metric.beside in history.all:
            found.insert(0, ChartLine(BESIDE, metric.beside.replace("_", " "), history.all[metric.beside]))
        if self.each and self.rank is not None and self.rank in each:
            found.append(ChartLine(2, f"rank {self.rank}", each[self.rank]))
        return found

    def _legend(self, lines: list[ChartLine], width: int, axis: TimeAxis) -> Strip:
        pieces: list[Piece] = [" " * (LABELS + 1)]
        at, metric = self._at(axis), self.metric
        for place, one in enumerate(lines):
            value = self._value(one.track, axis, at) if at and metric else None
            words = f"{one.name} {metric.words(value)}" if metric and value is not None else one.name
            more = f"  +{len(lines) - place - 1}" if place < len(lines) - 1 else ""
            if cells(pieces) + cells([words]) + 4 + len(more) > width:
                pieces.append((f"+{len(lines) - place}", self.component("muted")))
                break
            colour = self.colour(0 if one.number == BAND else one.number)
            pieces += [("━ ", colour), (f"{words}  ", self.component("muted"))]
        return line(pieces)

    def _plot(
        self, canvas: Canvas, drawn: list[tuple[int, list[Bucket | None]]], breaks: list[int], metric: Metric
    ) -> Scale:
        kept = [[column for column in columns if column] for _, columns in drawn]
        means = [column.mean for columns in kept for column in columns]
        spread = [value for columns in kept for column in columns for value in (column.low, column.high)]
        shown = means if self.smoothed else spread
        if metric.whole is not None and not self.log_scale:
            shown += [0.0, metric.whole]
        limits = scale(shown, log=self.log_scale, binary=metric.binary)
        for number, columns in drawn:
            if number == BAND:
                canvas.band(BAND, columns, limits)
        for number, columns in drawn:
            canvas.curve(0 if number == BAND else number, columns, limits, breaks)
        return limits

    def _show_title(self) -> None:
        metric, snapshot = self.metric, self._snapshot
        if metric is None or snapshot is None:
            self.set_title("")
            return
        track = snapshot.history.all[metric.name]
        other = snapshot.history.all.get(metric.beside) if metric.beside is not None else None
        axis = self._axis(snapshot, self._room)
        at = self._at(axis)
        value, beside = [
            None if one is None else one.at(snapshot.now) if at is None else self._value(one, axis, at)
            for one in (track, other)
        ]
        words = [metric.label, "no value" if value is None and at else "" if value is None else metric.words(value)]
        words += [f"val {metric.words(beside)}"] if beside is not None else []
        count = len(snapshot.history.each[metric.name])
        how = ["log"] if self.log_scale else []
        how += ["smooth"] if self.smoothed else []
        how += ["by step"] if self.by_step else []
        how += [f"last {axis.words(self._window)}"] if self._window else []
        if count > 1:
            how.append(
                f"each of {count} {metric.per}s" if self.each and count <= LINES else f"mean of {count} {metric.per}s"
            )
        self.set_title("  ".join(filter(None, words)), f"at {at.words}" if at else "", " · ".join(how))

    def _pointed(self, event: MouseEvent) -> float | None:
        """The place on the axis under the pointer; None if that is not within the plot."""
        offset, snapshot, room = event.get_content_offset(self), self._snapshot, self._room
        if offset is None or snapshot is None or self.metric is None or not 0 <= (x := offset.x - LABELS - 1) < room:
            return None
        return self._axis(snapshot, room).at((x + 0.5) / room)

    def on_click(self, event: Click) -> None:
        """Move the cursor to the pointer; in a replay, move the cursor of the replay."""
        place, snapshot = self._pointed(event), self._snapshot
        if place is None or snapshot is None:
            return
        if snapshot.playback is None:
            self._cursor = place
            self.redraw()
        elif (moment := self._axis(snapshot, self._room).moment(place)) is not None:
            self.post_message(Sought(moment))

    def on_mouse_move(self, event: MouseMove) -> None:
        self._point(self._pointed(event))

    def on_leave(self, event: Leave) -> None:
        self._point(None)

    def _point(self, place: float | None) -> None:
        if place != self._pointer:
            self._pointer = place
            self.redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the chart's cursor only outside a replay, and `no cursor` only if there is one."""
        if action == "cursor":
            return self._snapshot is None or self._snapshot.playback is None
        return action != "no_cursor" or self._cursor is not None

    def action_cursor(self, by: int) -> None:
        """Move the cursor by a cell; without a cursor, put it on the newest value."""
        snapshot, room = self._snapshot, self._room
        if snapshot is None or room < 1 or self.metric is None:
            return
        axis = self._axis(snapshot, room)
        self._pointer = None
        newest = axis.place(snapshot.now)
        last = room - 1 if newest is None else max(0, min(room - 1, int(axis.share(newest) * room)))
        here = self._cell(axis, room)
        cell = last if here is None else max(0, min(here + by, last))
        self._cursor = axis.at((cell + 0.5) / room)
        self.refresh_bindings()
        self.redraw()

    def action_no_cursor(self) -> None:
        """Remove the cursor, to show the newest values."""
        self._cursor = None
        self.refresh_bindings()
        self.redraw()

    def action_switch(self, what: str) -> None:
        if what == "by_step":
            self._window = self._cursor = self._pointer = None
            self.refresh_bindings()
        super().action_switch(what)

    def action_pick(self) -> None:
        self.post_message(self.PickRequested(self))

    def action_next(self, by: int) -> None:
        if self._snapshot is None:
            return
        names = [one.name for one in available(self._snapshot.history)]
        now = self.metric
        if names:
            self.chosen = names[(names.index(now.name) + by) % len(names) if now else 0]
            self.redraw()

    def action_zoom(self, by: float) -> None:
        if self._snapshot is None:
            return
        axis = self._axis(self._snapshot, self._room)
        wanted = (self._window or axis.rounded(axis.whole)) * by
        self._window = None if wanted >= axis.whole else max(axis.SHORTEST, wanted)
        self.redraw()


def _owner(metric: Metric, place: Place, snapshot: Snapshot) -> str:
    """The name of a line's owner, such as `rank 3`, `node1` or `node1 GPU 0`."""
    if metric.per == "rank":
        return f"rank {place}"
    node, gpu = place if isinstance(place, tuple) else (place, None)
    name = clean(snapshot.state.hosts[node].name)[:20]
    return name if gpu is None else f"{name} GPU {gpu}"
