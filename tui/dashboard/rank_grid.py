"""One widget for all ranks, up to some thousands: the state of each, and its pace relative to the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from disttui.runner.text import clean
from disttui.tui.dashboard.hosts import TROUBLE
from disttui.tui.keys import MOVE, OPEN, bind
from disttui.tui.run.feed import Snapshot
from disttui.tui.run.ranks import RankNow, pace_name, ranks_now
from disttui.tui.theme import RAMP, look
from disttui.tui.widgets.drawn import Drawn, Piece, line

NOISE = 0.1
"""Ranks whose pace differs from the median by less than this share look alike, because steps always vary a little."""


_ORDER = (*TROUBLE, "running", "stopped", "done")
"""Kinds of states in the order of the title, the most important first: a narrow pane cuts off the end."""


class GridLayout(NamedTuple):
    """The layout of the ranks, with widths in terminal cells."""

    cell: int
    """Width of a rank."""
    columns: int
    label: int
    """Width of the first rank's number before each row; 0 if each rank shows its number."""


class RankGrid(Drawn):
    """Shows every rank as a cell with glyph and colour, and with number and pace if there is room."""

    can_focus = True
    BORDER_TITLE = PLACE = "Ranks"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("grid.left", "h,left", "move(-1, 0)", "left", "previous rank", group=MOVE, show=False),
        bind("grid.right", "l,right", "move(1, 0)", "right", "next rank", group=MOVE, show=False),
        bind("grid.up", "k,up", "move(0, -1)", "up", "one row up", group=MOVE, show=False),
        bind("grid.down", "j,down", "move(0, 1)", "down", "one row down", group=MOVE, show=False),
        bind("grid.open", "enter", "open", "its log", "show the log of this rank", group=OPEN),
        bind("grid.slowest", "w", "slowest", "culprit",
             "to the culprit's failing line, or a blocking rank's last; again: affected ranks; without a culprit: "
             "the slowest rank",
             group=MOVE),
    ]  # fmt: skip

    class RankChosen(Message):
        """Requests the log of a rank."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    class RankBlamed(Message):
        """Requests the log of a culprit or victim at the line where it stopped."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    cursor: int | None = None
    """The selected rank."""
    _snapshot: Snapshot | None = None
    _ranks: Sequence[RankNow] = ()
    _top = 0

    def show(self, snapshot: Snapshot) -> None:
        first = self._snapshot is None
        self._snapshot = snapshot
        self._ranks = ranks_now(snapshot)
        if first:
            self.refresh(layout=True)
        self._show_title()
        self.redraw()

    def rows(self, width: int) -> int:
        """Number of rows with the widest cells; with less room, the cells become smaller."""
        return max(1, -(-len(self._ranks) // self._columns(width)))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Number of rows in the maximum height; with little height, the cells become smaller."""
        limit = self.styles.max_height
        most = container.height if limit is None else int(limit.resolve(container, viewport)) - 1
        return max(1, -(-len(self._ranks) // self._layout(width, max(1, most)).columns))

    def choose(self, rank: int | None) -> None:
        """Put the cursor on a rank, or remove it if `rank` is None."""
        self.cursor = None if rank is None or not self._ranks else max(0, min(rank, len(self._ranks) - 1))
        self._keep_in_sight()
        self._show_title()
        self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        if not self._ranks or width < 4:
            return []
        plan = self._layout(width, height)
        rows = range(self._top, self._top + height)
        return [self._row(row, plan) for row in rows if row * plan.columns < len(self._ranks)]

    def _layout(self, width: int, height: int) -> GridLayout:
        count = len(self._ranks)
        digits = len(str(count - 1))
        plan = GridLayout(self._widest(), self._columns(width), 0)
        if -(-count // plan.columns) <= height:
            return plan
        plan = GridLayout(digits + 3, max(1, (width + 1) // (digits + 3)), 0)
        if -(-count // plan.columns) <= height:
            return plan
        for cell in (2, 1):
            room = (width - digits - 1) // cell
            plan = GridLayout(cell, max(1, room // 8 * 8 or room), digits + 1)
            if -(-count // plan.columns) <= height:
                return plan
        return plan

    def _columns(self, width: int) -> int:
        return max(1, (width + 2) // self._widest())

    def _widest(self) -> int:
        """Width of the widest cells, which contain the pace if any is known."""
        return len(str(max(0, len(self._ranks) - 1))) + (12 if any(one.pace for one in self._ranks) else 3)

    def _row(self, row: int, plan: GridLayout) -> Strip:
        first = row * plan.columns
        cells = self._ranks[first : first + plan.columns]
        digits = len(str(len(self._ranks) - 1))
        quiet, cursor = self.component("muted"), self.component("selected") + self.component("strong")
        styles = {f"ramp--{step}": self.component(f"ramp--{step}") for step in range(RAMP)}
        pieces: list[Piece] = [(f"{first:>{plan.label - 1}} ", quiet)] if plan.label else []
        for one in cells:
            css = _css(one)
            style = styles.get(css) or styles.setdefault(css, self.component(css))
            glyph = look(one.word).glyph
            if plan.cell <= 2:
                text = glyph + " " * (plan.cell - 1)
                pieces.append((text, style if one.rank != self.cursor else cursor))
                continue
            number = f"{one.rank:>{digits}} "
            text = f"{glyph} {_pace(one)}" if plan.cell >= digits + 12 else glyph
            gap = " " * (plan.cell - len(number) - len(text))
            if one.rank == self.cursor:
                pieces += [(number + text, cursor), gap]
            else:
                pieces += [(number, quiet), (text, style), gap]
        return line(pieces)

    def _show_title(self) -> None:
        """Show the chosen rank in the border, or the number of ranks in each state."""
        name = pace_name(self._snapshot).replace("_", " ") if self._snapshot else ""
        if self.cursor is not None and self.cursor < len(self._ranks) and self._snapshot:
            one = self._ranks[self.cursor]
            host = clean(self._snapshot.state.hosts[one.node].name)
            # The most important first: a narrow pane cuts off the end.
            pace, ratio = (f" {_pace(one).strip()}", f", {one.ratio:.2f}× median {name}") if one.pace else ("", "")
            self.set_title(f"rank {one.rank} {look(one.word).glyph} {clean(one.word)}{pace} on {host}{ratio}")
            return
        words: dict[str, int] = {}
        for one in self._ranks:
            words[one.word] = words.get(one.word, 0) + 1
        ordered = sorted(words.items(), key=lambda one: (_ORDER.index(look(one[0]).kind), one[0]))
        plan = self._layout(*self.size)
        paced = plan.cell >= self._widest() and any(one.pace for one in self._ranks)
        counts = [f"{look(word).glyph} {count} {clean(word)}" for word, count in ordered]
        troubled = sum(look(word).kind in TROUBLE for word, _ in ordered)
        said = "  ".join([*counts[:troubled], *self._hidden(plan), *counts[troubled:]])
        paced = paced and len(f"Ranks · {name}   {said}") <= self.size.width
        self.set_title(f"Ranks · {name}" if paced else "Ranks", said)

    def _hidden(self, plan: GridLayout) -> Iterable[str]:
        """Yield how to show the hidden ranks, if any."""
        count, page = len(self._ranks), plan.columns * self.size.height
        if not 0 < page < count:
            return
        keys = (one.binding for one in self.screen.active_bindings.values() if one.binding.id == "dash.zoom")
        zoom = next(keys, None)
        if zoom is not None and not self.screen.has_class("-alone"):
            yield f"{self.app.get_key_display(zoom)} shows {count - page} more"
            return
        first = self._top * plan.columns
        yield f"{first}-{min(count, first + page) - 1} of {count}"

    def _keep_in_sight(self) -> None:
        width, height = self.size
        if not self._ranks or not height:
            return
        columns = self._layout(width, height).columns
        row = (self.cursor or 0) // columns
        most = max(0, -(-len(self._ranks) // columns) - height)
        self._top = min(most, max(row - height + 1, min(self._top, row)))

    def action_move(self, x: int, y: int) -> None:
        if self.cursor is None:
            self.choose(0)
            return
        to = self.cursor + x + y * self._layout(*self.size).columns
        if 0 <= to < len(self._ranks):
            self.choose(to)

    def action_slowest(self) -> None:
        """Go to the culprit of a failure or stall, then to its victims; without one, to the slowest rank."""
        by_pace = sorted(self._ranks, key=lambda one: -one.ratio)
        culprits = [one.rank for one in by_pace if one.culprit]
        if culprits:
            order = [*culprits, *(one.rank for one in self._ranks if one.victim)]
            at = order.index(self.cursor) + 1 if self.cursor in order else 0
            self.choose(order[at % len(order)])
            self.post_message(self.RankBlamed(order[at % len(order)]))
        elif by_pace:
            self.choose(by_pace[0].rank)

    def action_open(self) -> None:
        """Show the log of the selected rank, or of rank 0 if none is selected."""
        if self._ranks:
            self.post_message(self.RankChosen(self.cursor or 0))

    def on_resize(self, event: events.Resize) -> None:
        self._keep_in_sight()
        self._show_title()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not self._ranks:
            return
        plan = self._layout(*self.size)
        column = (offset.x - plan.label) // plan.cell
        rank = (self._top + offset.y) * plan.columns + column
        if 0 <= column < plan.columns and rank < len(self._ranks):
            self.choose(rank)
            self.post_message(self.RankChosen(rank))


def _css(one: RankNow) -> str:
    if one.word != "running" or one.pace is None or abs(one.ratio - 1) < NOISE:
        return look(one.word).css
    # Blue at half the median, orange at one and a half.
    return f"ramp--{max(0, min(RAMP - 1, int((one.ratio - 0.5) * RAMP)))}"


def _pace(one: RankNow) -> str:
    if one.pace is None:
        return f"{'':7}"
    return f"{one.pace * 1000:4.0f} ms" if one.pace < 9.9995 else f"{one.pace:5.1f} s"
