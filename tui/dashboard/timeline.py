"""The events of a run, the newest last: attempts, joins, stalls, failures."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from disttui.runner.formatting import duration
from disttui.tui.keys import MOVES, OPEN, bind
from disttui.tui.run.events import Moment
from disttui.tui.run.feed import Snapshot
from disttui.tui.theme import look
from disttui.tui.widgets.drawn import Drawn, line, wrapped


class TimelinePane(Drawn):
    """One line per moment; the newest are visible until the user scrolls back."""

    can_focus = True
    BORDER_TITLE = "Events"
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVES,
        bind("timeline.open", "enter", "open", "go there", "show the log of that rank; in a replay, go to that time",
             group=OPEN),
    ]  # fmt: skip

    class MomentChosen(Message):
        """Requests the log of a moment or, in a replay, its time."""

        def __init__(self, moment: Moment) -> None:
            super().__init__()
            self.moment = moment

    _moments: tuple[Moment, ...] = ()
    _began: float | None = None
    _several = False
    """Whether the run has several hosts."""
    _cursor: int | None = None
    """Index of the selected moment; None to follow the newest."""

    def show(self, snapshot: Snapshot) -> None:
        self._moments, self._began = snapshot.moments, snapshot.began
        self._several = len(snapshot.state.hosts) > 1
        if self._cursor is not None and self._cursor >= len(self._moments) - 1:
            self._cursor = None
        self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        if not self._moments:
            return [line([("no events yet", self.component("muted"))])]
        last = len(self._moments) - 1
        cursor = last if self._cursor is None else self._cursor
        top = max(0, min(last - height + 1, cursor - height // 2))
        names = min(12, max(len(moment.host) for moment in self._moments)) if self._several and width > 50 else 0
        shown = self._moments[top : top + height]
        times = max((len(self._when(moment)) for moment in shown), default=0)
        spare, found = height - len(shown), list[Strip]()
        for at, moment in reversed(list(enumerate(shown, top))):
            drawn = self._lines(moment, width, (times, names), 1 + spare, chosen=self.has_focus and at == cursor)
            spare -= len(drawn) - 1
            found[:0] = drawn
        return found

    def _lines(self, moment: Moment, width: int, columns: tuple[int, int], most: int, *, chosen: bool) -> list[Strip]:
        """Draw a moment, in several lines if it is long and fits into `most` rows."""
        times, names = columns
        seen = look(moment.look)
        count = f"{moment.count} " if moment.count > 1 else ""
        text = count + moment.text
        when = f"{self._when(moment):>{times}} "
        host = f"{moment.host[:names]:<{names}} " if names else ""
        room = max(4, width - len(when) - len(host) - 2)
        first, *more = wrapped([text], room)
        if len(more) >= most:
            first, more = text[: room - 1] + "…", []
        heads = [when, f"{seen.glyph} ", host]
        indent = " " * (width - room)
        if chosen:
            css = self.component("selected")
            return [
                line([(one.ljust(width), css)]) for one in ("".join([*heads, first]), *(indent + one for one in more))
            ]
        quiet = self.component("muted")
        styles = [quiet, self.component(seen.css), quiet]
        return [line([*zip(heads, styles, strict=True), first]), *(line([indent, one]) for one in more)]

    def _when(self, moment: Moment) -> str:
        return "" if self._began is None else duration(moment.time - self._began)

    def _go(self, to: int) -> None:
        last = len(self._moments) - 1
        self._cursor = None if to >= last else max(0, to)
        self.redraw()

    def _at(self) -> int:
        return len(self._moments) - 1 if self._cursor is None else self._cursor

    def action_move(self, by: int) -> None:
        self._go(self._at() + by)

    def action_page(self, by: int) -> None:
        self._go(self._at() + by * self.size.height)

    def action_edge(self, last: bool) -> None:
        """Go to the first moment, or to the newest, and follow it."""
        self._go(len(self._moments) - 1 if last else 0)

    def action_open(self) -> None:
        if self._moments:
            self.post_message(self.MomentChosen(self._moments[self._at()]))

    def on_focus(self, event: events.Focus) -> None:
        self.redraw()

    def on_blur(self, event: events.Blur) -> None:
        self.redraw()
