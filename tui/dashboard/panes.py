"""The panes of a run's dashboard: laid out for the size of the terminal, focused, zoomed, kept up to date."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import DescendantFocus, Resize
from textual.widget import Widget

from runner.formatting import duration
from runner.text import clean
from tui.charts.chart import Chart
from tui.dashboard.hosts import HostsPane
from tui.dashboard.load import LoadPane
from tui.dashboard.log_screen import LogScreen
from tui.dashboard.progress import ProgressLine, facts, run_word
from tui.dashboard.rank_grid import RankGrid
from tui.dashboard.story import StoryPane
from tui.dashboard.timeline import TimelinePane
from tui.dialogs.pick import PickScreen
from tui.keys import APP, MOVE, VIEW, bind
from tui.log.blame import Blame
from tui.run.events import Moment
from tui.run.feed import Snapshot
from tui.run.metrics import available
from tui.run.ranks import blamed
from tui.startup import settle, unsettle

CHARTS = 6
MANY = 128
"""Ranks from which on their grid needs the room of the events."""
STACKED = (80, 20)
"""Columns and rows under which the panes stand under one another, the most important first."""
ROOMY = 30
"""Rows from which on why a run has failed leaves room for all panes."""
LEAST = 4
"""Rows of a pane that shows more than its title."""
EVENTS = 9
"""Rows that the events keep where the load is shown above them."""
PACE = 1.0
"""Seconds between two drawings of what is large: grid, charts, table."""
TYPING = 0.8
"""Seconds within which digits make one rank's number."""


class PanesScreen(LogScreen):
    """What live dashboard and replay share."""

    SCOPED_CSS = False
    CSS = """
    PanesScreen {
        #upper { height: 3fr; }
        #left { width: 40%; max-width: 76; margin: 0 2 0 0; }
        #hosts { height: auto; max-height: 35%; }
        #ranks { height: auto; max-height: 50%; }
        &.-many #ranks { height: 1fr; max-height: 100%; }
        &.-alone #ranks { height: 1fr; max-height: 100%; }
        #load { height: auto; }
        #events { height: 1fr; min-height: 4; }
        #charts { width: 1fr; }
        .-off { display: none; }
        .row { height: 1fr; }
        Chart.pane { width: 1fr; margin: 0 2 0 0; }
        .row Chart.-last { margin: 0; }
        #log { height: 2fr; min-height: 5; }
        .pane { padding: 0 1; }
        #log { padding: 0; }
        #story { height: auto; display: none; background: $surface; }
        &.-story #story { display: block; }
        &.-normal, &.-narrow { #left, Chart.pane { margin: 0 1 0 0; } }
        &.-normal #left { width: 50%; }
        &.-alone #left { width: 100%; max-width: 100%; margin: 0; }
        &.-alone #hosts { height: 1fr; max-height: 100%; }
        &.-alone Chart.pane, &.-stack Chart.pane { margin: 0; }
        &.-medium.-story #hosts { max-height: 50%; }
        &.-stack {
            #upper { layout: vertical; height: 3fr; min-height: 4; }
            #charts { min-height: 4; }
            #left { width: 100%; max-width: 100%; height: auto; margin: 0; }
            #log { height: 2fr; min-height: 4; }
        }
        &.-stack #hosts, &.-stack.-story #hosts { max-height: 6; }
        &.-listed {
            #left { height: 1fr; }
            #hosts, #ranks { height: 1fr; max-height: 100%; }
        }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("dash.back", "q", "back", "back", "back to the screen before; the run goes on", group=APP),
        bind("dash.before", "shift+tab", "pane(-1)", "pane before", "to the pane before", group=MOVE, show=False),
        bind("dash.filter", "ampersand", "log('filter')", "filter", "filter the log", group=VIEW, show=False),
        *(
            bind(f"dash.rank_{digit}", str(digit), f"rank({digit})", f"rank {digit}",
                 f"choose rank {digit}; more digits within a moment make a larger number", group=MOVE, show=False)
            for digit in range(10)
        ),
        bind("dash.blamed", "w", "blamed", "to blame", "to the rank that is to blame, as in the ranks", group=MOVE,
             show=False),
        bind("dash.all", "A", "all_ranks", "all ranks", "the log of all ranks again", show=False),
    ]  # fmt: skip
    AUTO_FOCUS = "#ranks"

    def __init__(self) -> None:
        super().__init__()
        self.snapshot: Snapshot | None = None
        self._zoomed = False
        self._drawn_at = 0.0
        self._charted: Snapshot | None = None
        """The moment that the charts show."""
        self._typed = ("", 0.0)
        self._pane = "ranks"

    def body(self) -> Iterable[Widget]:
        """Progress, story, hosts, ranks, events, charts, log."""
        yield ProgressLine()
        yield self._classed(StoryPane("story"))
        with Horizontal(id="upper"):
            with Vertical(id="left"):
                yield self._classed(HostsPane("hosts"))
                yield self._classed(RankGrid("ranks"))
                yield self._classed(LoadPane("load"))
                yield self._classed(TimelinePane("events"))
            with Vertical(id="charts"):
                for row in range(CHARTS // 2):
                    with Horizontal(classes="row", id=f"row{row}"):
                        yield self._classed(Chart(2 * row, f"chart{2 * row}"))
                        yield self._classed(Chart(2 * row + 1, f"chart{2 * row + 1}"), "-last")
        yield Vertical(id="log", classes="pane")

    @staticmethod
    def _classed(pane: Widget, *more: str) -> Widget:
        pane.add_class("pane", *more)
        return pane

    # Showing

    def show(self, snapshot: Snapshot, *, at_once: bool = False) -> None:
        """Show another moment: words at once, what is large once a second."""
        first = self.snapshot is None
        self.snapshot = snapshot
        self.set_clocks(snapshot.state.hosts[0].story.offsets)
        self.query_one(ProgressLine).show(snapshot)
        self.query_one(TimelinePane).show(snapshot)
        told = self.query_one(StoryPane).show(snapshot)
        if told != self.has_class("-story"):
            self.set_class(told, "-story")
            self._arrange()
        if first:
            self.set_class(snapshot.state.world_size > MANY, "-many")
            self.call_after_refresh(settle)
        if first or at_once or snapshot.state.result:
            self._show_large(snapshot)
            if first:
                self._arrange()
        elif time.monotonic() - self._drawn_at >= PACE - 0.05:
            self._show_large_in_turn(snapshot)
        self._show_head()

    def on_unmount(self) -> None:
        """Let what was shown be forgotten."""
        unsettle()

    def _show_head(self) -> None:
        snapshot = self.snapshot
        if snapshot is not None:
            elapsed = duration(snapshot.elapsed) if snapshot.began else ""
            numbers = facts(snapshot, self._charted or snapshot)
            self.header.show(snapshot.state.run, numbers, run_word(snapshot), elapsed)

    def _large(self) -> list[HostsPane | RankGrid | LoadPane | Chart]:
        return [self.query_one(HostsPane), self.query_one(RankGrid), self.query_one(LoadPane), *self.query(Chart)]

    def _show_large(self, snapshot: Snapshot) -> None:
        self._drawn_at = time.monotonic()
        self._charted = snapshot
        for pane in self._large():
            pane.show(snapshot)
        self._blame(snapshot)

    def show_log(self, mirror: Path, names: Sequence[str], offsets: Mapping[int, float]) -> None:
        """Put the run's log in its place, with what is known of it."""
        super().show_log(mirror, names, offsets)
        if self.snapshot is not None:
            self._blame(self.snapshot)

    def _blame(self, snapshot: Snapshot) -> None:
        """Mark the log's lines of whom the ranks' pane blames."""
        if self.log_view is not None:
            roles = blamed(snapshot)
            blame = Blame(snapshot.state.attempt, roles.culprits, roles.victims, roles.said, roles.stalled)
            self.log_view.blame(blame)

    @work(group="large", exclusive=True)
    async def _show_large_in_turn(self, snapshot: Snapshot) -> None:
        """A key that comes meanwhile waits for one pane, not for all."""
        self._drawn_at = time.monotonic()
        for pane in self._large():
            pane.show(snapshot)
            await asyncio.sleep(0)
        self._blame(snapshot)
        self._charted = snapshot
        self._show_head()

    # Panes

    def on_mount(self) -> None:
        """Lay the panes out."""
        if self.size.width < STACKED[0] or self.size.height < STACKED[1]:
            self.query_one("#chart0").focus()
        self._arrange()

    def on_resize(self, event: Resize) -> None:
        """Lay them out anew; while the screen is being opened or closed, they are not all there."""
        super().on_resize(event)
        if self.is_mounted and self.is_attached:
            self._arrange()

    def _arrange(self) -> None:
        width, height = self.size
        alone = self._zoomed
        stack = not alone and (width < STACKED[0] or height < STACKED[1])
        top, beside = self._stacked(height)
        one = self._pane if alone else top if stack else None
        rows = 1 if height < 36 else 2 if height < 70 else 3
        columns = 1 if width < 130 else 2
        for chart in self.query(Chart):
            number = int(str(chart.id)[5:])
            chart.display = one == chart.id if one else number // 2 < rows and number % 2 < columns
        for row in range(CHARTS // 2):
            charts = [self.query_one(f"#chart{2 * row + side}") for side in (0, 1)]
            self.query_one(f"#row{row}").display = any(chart.display for chart in charts)
        crowded = self.has_class("-many") or (self.has_class("-story") and height < ROOMY and self._pane != "events")
        for name in ("hosts", "ranks", "log", "events"):
            shown = one == name if one else name != "events" or not crowded
            shown |= stack and name in beside
            self.query_one(f"#{name}").set_class(not shown, "-off")
        self.query_one(LoadPane).fit(0 if one or crowded else self._spare())
        self.query_one("#left").display = one in (None, "hosts", "ranks", "events") or (stack and "hosts" in beside)
        self.query_one("#charts").display = one is None or one.startswith("chart")
        self.query_one("#upper").set_class(one == "log", "-off")
        if stack != self.has_class("-stack"):
            # What was beside the charts comes under them.
            upper, order = self.query_one("#upper"), ("#left", "#charts")
            first, second = map(self.query_one, reversed(order) if stack else order)
            upper.move_child(first, before=second)
        self.set_class(alone, "-alone")
        self.set_class(stack, "-stack")
        self.set_class(stack and not top.startswith("chart"), "-listed")
        self.query_one(StoryPane).styles.max_height = _story_rows(height)

    def _spare(self) -> int:
        """Rows beside the charts that hosts, ranks and events leave to the load."""
        width, height = self.size
        upper = (height - 4 - self._told()) * 3 // 5
        panes = (self.query_one(HostsPane), self.query_one(RankGrid))
        left = min(76, width * 2 // 5 if width >= 130 else width // 2) - 4
        taken = sum(pane.rows(left) + 1 for pane in panes) + EVENTS
        return max(0, upper - taken - 1)

    def _told(self) -> int:
        """Rows that why the run has failed takes."""
        story = self.query_one(StoryPane)
        return (
            min(_story_rows(self.size.height), story.rows(self.size.width - 2) + 1) if self.has_class("-story") else 0
        )

    def _stacked(self, height: int) -> tuple[str, tuple[str, ...]]:
        """What stands at the top where there is no room for all panes, and what else does."""
        room = height - 4 - self._told()
        if room < 2 * LEAST:
            return self._pane, ()
        if self._pane in ("ranks", "events"):
            return self._pane, ("log",)
        top = self._pane if self._pane.startswith("chart") else "chart0"
        if room >= 3 * LEAST:
            return top, ("log", "hosts")
        return "hosts" if self._pane == "hosts" else top, ("log",)

    def _names(self) -> list[str]:
        """The panes that tab goes through."""
        offered = len(available(self.snapshot.history)) if self.snapshot else 1
        charts = [f"chart{number}" for number in range(min(CHARTS, max(1, offered)))]
        names = ["hosts", "ranks", *charts, "events", "log"]
        if self.has_class("-alone") or self.has_class("-stack"):
            return names
        return [name for name in names if self.query_one(f"#{name}").display]

    def action_pane(self, by: int) -> None:
        """Focus another pane."""
        names = self._names()
        at = names.index(self._pane) if self._pane in names else 0
        self.go_to(names[(at + by) % len(names)])

    def go_to(self, name: str) -> None:
        """Focus a pane."""
        self._pane = name
        self._arrange()
        pane = self.query_one(f"#{name}")
        if name == "log" and self.log_view is not None:
            self.log_view.lines.focus()
        else:
            pane.focus()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Remember the pane."""
        for widget in event.widget.ancestors_with_self:
            if isinstance(widget, Widget) and widget.has_class("pane") and widget.id and widget.id != "story":
                moved, self._pane = self._pane != widget.id, widget.id
                if moved and self.has_class("-stack"):
                    self._arrange()

    def title_clicked(self, pane: Widget) -> None:
        """Go to the pane; the story takes no keys."""
        if pane.id and pane.id != "story":
            self.go_to(pane.id)

    def action_zoom(self) -> None:
        """This pane alone, or all."""
        self._zoomed = not self._zoomed
        self.go_to(self._pane)

    async def action_back(self) -> None:
        """Out of the zoom, from one rank to all, then from this screen."""
        if self._zoomed:
            self.action_zoom()
        elif self.query_one(RankGrid).cursor is not None:
            self.action_all_ranks()
        else:
            self.leaving()
            await super().action_back()

    def leaving(self) -> None:
        """Say what becomes of the run."""

    # Ranks and logs

    def action_rank(self, digit: int) -> None:
        """Choose a rank by its digits."""
        typed, when = self._typed
        now = self.disttui.typed_at
        number = (typed if now - when < TYPING else "") + str(digit)
        if self.snapshot and int(number) >= self.snapshot.state.world_size:
            number = str(digit)
        self._typed = (number, now)
        self.choose_rank(int(number))

    def choose_rank(self, rank: int | None) -> None:
        """Show one rank's log, and its line in the charts; None: all."""
        self.query_one(RankGrid).choose(rank)
        for chart in self.query(Chart):
            chart.rank = rank
        if self.log_view is not None:
            self.log_view.show_ranks(None if rank is None else [rank])
        self.query_one("#log").border_title = "Log" if rank is None else f"Log · rank {rank}"

    def action_all_ranks(self) -> None:
        """All ranks again."""
        self.choose_rank(None)

    def action_log(self, kind: str) -> None:
        """Ask in the log pane."""
        if self.log_view is not None:
            # Not go_to: the focus that it gives comes later, and would be taken from the prompt.
            self._pane = "log"
            self._arrange()
            self.log_view.action_ask(kind)

    def on_hosts_pane_host_chosen(self, event: HostsPane.HostChosen) -> None:
        """Show the logs of its ranks."""
        if self.snapshot is None or self.log_view is None:
            return
        hosts = self.snapshot.state.hosts
        first = sum(host.nproc for host in hosts[: event.node])
        self.choose_rank(first)
        self.log_view.show_ranks(list(range(first, first + hosts[event.node].nproc)))
        self.query_one("#log").border_title = Content(f"Log · {clean(hosts[event.node].name)}")
        self.go_to("log")

    def on_rank_grid_rank_chosen(self, event: RankGrid.RankChosen) -> None:
        """Show its log."""
        self.choose_rank(event.rank)
        self.go_to("log")

    def on_rank_grid_rank_blamed(self, event: RankGrid.RankBlamed) -> None:
        """Show its log where it stopped."""
        self.choose_rank(event.rank)
        if self.log_view is not None:
            self.log_view.go_to_failing(event.rank)
            if self.query_one("#log").has_class("-off"):
                self.go_to("log")

    def action_blamed(self) -> None:
        """Go to the rank that is to blame, from any pane."""
        self.query_one(RankGrid).action_slowest()

    def on_timeline_pane_moment_chosen(self, event: TimelinePane.MomentChosen) -> None:
        """Show where it happened."""
        self.show_moment(event.moment)

    def show_moment(self, moment: Moment) -> None:
        """Show the log of a moment's rank."""
        if moment.rank is not None:
            self.choose_rank(moment.rank)
            self.go_to("log")

    @work(group="pick")
    async def on_chart_pick_requested(self, event: Chart.PickRequested) -> None:
        """Offer what can be drawn."""
        if self.snapshot is None:
            return
        now = event.chart.metric
        offered = [(one.name, one.label) for one in available(self.snapshot.history)]
        if offered:
            chosen = await self.app.push_screen_wait(PickScreen("Show", offered, now.name if now else None))
            if chosen:
                event.chart.chosen = chosen
                event.chart.show(self.snapshot)


def _story_rows(height: int) -> int:
    """Rows at most of why a run has failed."""
    return 4 if height < 16 else 5 if height < 24 else 7 if height < 40 else 12
