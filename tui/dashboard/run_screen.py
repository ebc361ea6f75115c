"""The screen of a run, live or replayed: its panes, their updates and focus, and the actions on an ended run."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.binding import ActiveBinding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import DescendantFocus, Resize
from textual.widget import Widget
from textual.widgets import Input
from textual.worker import Worker

from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import duration
from disttui.runner.runs.condition import run_word
from disttui.runner.runs.notes import Checkpoint
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.runs.state import HostState
from disttui.runner.text import clean
from disttui.tui.charts.chart import Chart
from disttui.tui.dashboard.ended import Ended, story
from disttui.tui.dashboard.hosts import HostsPane
from disttui.tui.dashboard.layout import CHARTS, MANY, PaneLayout
from disttui.tui.dashboard.load import LoadPane
from disttui.tui.dashboard.rank_grid import RankGrid
from disttui.tui.dashboard.story import ProgressLine, StoryPane, facts
from disttui.tui.dashboard.timeline import TimelinePane
from disttui.tui.dialogs.prompts import PickScreen
from disttui.tui.keys import APP, CHANGE, MOVE, VIEW, bind
from disttui.tui.log import LogSources, LogView, Older
from disttui.tui.run.again import run_again
from disttui.tui.run.events import Moment
from disttui.tui.run.feed import Snapshot
from disttui.tui.run.ranks import blamed, short_names
from disttui.tui.run.series import available, charted
from disttui.tui.screen import DisttuiScreen
from disttui.tui.startup import freeze_objects, unfreeze_objects
from disttui.tui.terminal import open_pager
from disttui.tui.widgets.bars import FooterBar

PACE = 1.0
"""Minimum seconds between two drawings of the large panes: hosts, ranks, load, charts."""
TYPING = 0.8
"""Seconds within which a typed digit continues the number of a rank."""


class RunScreen(DisttuiScreen):
    """The common base of the live dashboard and the replay."""

    SCOPED_CSS = False
    CSS = """
    RunScreen {
        #upper { height: 3fr; }
        #left { width: 40%; max-width: 76; margin: 0 2 0 0; }
        #hosts { height: auto; max-height: 42%; }
        #ranks { height: auto; max-height: 47%; }
        &.-many #ranks, &.-alone #ranks { height: 1fr; max-height: 100%; }
        #load { height: auto; }
        #events { height: 1fr; min-height: 2; }
        #charts { width: 1fr; }
        .-off { display: none; }
        .row { height: 1fr; }
        .row.-column { layout: vertical; }
        Chart.pane { width: 1fr; margin: 0 2 0 0; }
        .row Chart.pane.-last { margin: 0; }
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
            #charts { min-height: 3; }
            #left { width: 100%; max-width: 100%; height: auto; margin: 0; }
            #log { height: 2fr; min-height: 4; }
        }
        &.-stack #hosts { max-height: 25vh; }
        &.-stack.-story #hosts { max-height: 20vh; }
        &.-grid #upper { height: auto; }
        &.-stack.-listed {
            #left { height: 1fr; }
            #hosts, #ranks { height: 1fr; max-height: 100%; }
        }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("dash.back", "q", "back", "back", "leave the zoom, then the rank, then this screen", group=APP),
        bind("dash.before", "shift+tab", "pane(-1)", "previous pane", group=MOVE, show=False),
        bind("dash.filter", "ampersand", "log('filter')", "filter", "filter the log", group=VIEW, show=False),
        *(
            bind(f"dash.rank_{digit}", str(digit), f"rank({digit})", f"rank {digit}",
                 f"choose rank {digit}; more digits: a larger number", group=MOVE, show=False)
            for digit in range(10)
        ),
        bind("dash.blamed", "w", "blamed", "culprit", "go to the culprit", group=MOVE,
             show=False),
        bind("dash.all", "A", "all_ranks", "all ranks", "show the log of all ranks", show=False),
        bind("ended.again", "r", "again", "rerun", "rerun it, with changes if you like", group=CHANGE),
        bind("ended.resume", "R", "resume", "resume", "resume it from a checkpoint", group=CHANGE),
        bind("ended.pull", "p", "pull", "pull", "copy its checkpoints and results here", group=CHANGE),
        bind("ended.story", "y", "copy_story", "copy summary", "copy how it ended, as `disttui runs show`"),
    ]  # fmt: skip
    AUTO_FOCUS = "#ranks"

    def __init__(self) -> None:
        super().__init__()
        self.snapshot: Snapshot | None = None
        self.known: KnownRun | None = None
        """The run in this machine's registry, if any."""
        self.arrangement = PaneLayout(self)
        self.log_pane = Vertical(id="log", classes="pane")
        self._ended = Ended()
        self._drawn_at = 0.0
        self._turn: Worker[None] | None = None
        self._charted: Snapshot | None = None
        """The snapshot that the charts show."""
        self._typed = ("", 0.0)
        self._culprits = False
        """Whether any rank is blamed."""

    def body(self) -> Iterable[Widget]:
        """Yield progress, story, hosts, ranks, events, charts and log."""
        yield ProgressLine()
        yield self._classed(StoryPane(id="story"))
        with Horizontal(id="upper"):
            with Vertical(id="left"):
                yield self._classed(HostsPane(id="hosts"))
                yield self._classed(RankGrid(id="ranks"))
                yield self._classed(LoadPane(id="load"))
                yield self._classed(TimelinePane(id="events"))
            with Vertical(id="charts"):
                for row in range(CHARTS // 2):
                    with Horizontal(classes="row", id=f"row{row}"):
                        yield self._classed(Chart(2 * row, f"chart{2 * row}"))
                        yield self._classed(Chart(2 * row + 1, f"chart{2 * row + 1}"), "-last")
        yield self.log_pane

    @staticmethod
    def _classed(pane: Widget, *more: str) -> Widget:
        pane.add_class("pane", *more)
        return pane

    @property
    def log_view(self) -> LogView | None:
        """The run's log; None before it is opened."""
        return next(iter(self.query(LogView)), None)

    # Showing

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """The keys, labelled by what they currently do."""
        found = super().active_bindings
        for key, one in found.items():
            if label := self.labels.get(one.binding.id or ""):
                found[key] = one._replace(binding=replace(one.binding, description=label))
        return found

    @property
    def labels(self) -> Mapping[str, str]:
        """Id of a binding → its label, where it currently differs from the binding's."""
        return {} if self._culprits else {"grid.slowest": "slowest", "dash.blamed": "slowest"}

    def show(self, snapshot: Snapshot, *, at_once: bool = False) -> None:
        """Show a snapshot: texts immediately; large panes every PACE seconds, or immediately if `at_once`."""
        first, ended = self.snapshot is None, self.over
        self.snapshot = snapshot
        if (view := self.log_view) is not None:
            if view.sources.set_offsets(snapshot.state.hosts[0].story.offsets):
                view.call_later(view.read_anew)  # it may not be mounted yet
            view.show_lag(snapshot.lag)
        self.query_one(ProgressLine).show(snapshot)
        self.query_one(TimelinePane).show(snapshot)
        story = self.query_one(StoryPane).show(snapshot)
        self.arrangement.tell(story=story, charts=len(charted(snapshot.history)))
        if first:
            self.set_class(snapshot.state.world_size > MANY, "-many")
            self.call_after_refresh(freeze_objects)
        if first or at_once or snapshot.state.result:
            self._show_large(snapshot)
            if first or snapshot.state.result:
                self.arrangement.arrange()  # for the rows that the panes need now
        elif time.monotonic() - self._drawn_at >= PACE - 0.05 and (self._turn is None or self._turn.is_finished):
            self._turn = self._show_large_in_turn(snapshot)
        self._show_head()
        if self.over != ended:
            if not first:
                self.query_one(FooterBar).changed_by_itself()
            self.refresh_bindings()
        if self.over and self.known is not None and not self.disttui.read_only:
            self._ended.look(self.known, self.disttui.ssh_config, partial(self.call_later, self._offer_resume))

    def on_unmount(self) -> None:
        """Let the collector free the objects of this screen."""
        unfreeze_objects()

    def _show_head(self) -> None:
        snapshot = self.snapshot
        if snapshot is not None:
            elapsed = duration(snapshot.elapsed) if snapshot.state.began else ""
            numbers = facts(snapshot, self._charted or snapshot)
            if self.disttui.read_only:
                numbers = ["read-only", *numbers]
            word = "incomplete" if snapshot.cut_off else run_word(snapshot.state)
            self.header.show(snapshot.state.run, numbers, word, elapsed)

    def _large(self) -> list[HostsPane | RankGrid | LoadPane | Chart]:
        return [self.query_one(HostsPane), self.query_one(RankGrid), self.query_one(LoadPane), *self.query(Chart)]

    def _show_large(self, snapshot: Snapshot) -> None:
        if self._turn is not None:
            self._turn.cancel()  # it would draw the remaining panes from the old snapshot
        self._drawn_at = time.monotonic()
        self._charted = snapshot
        for pane in self._large():
            pane.show(snapshot)
        self._blame(snapshot)

    def show_log(self, mirror: Path, hosts: Sequence[KnownHost | HostState], offsets: Mapping[int, float]) -> None:
        """Open the run's log in its pane, with the known failures marked."""
        self.log_pane.border_title = "Log"
        counts = [host.nproc for host in hosts]
        sources = LogSources(mirror, short_names([host.name for host in hosts]), offsets, counts)
        self.log_pane.mount(LogView(sources, read_only=self.disttui.read_only))
        if self.snapshot is not None:
            self._blame(self.snapshot)

    def _blame(self, snapshot: Snapshot) -> None:
        """Mark the log lines of the blamed ranks."""
        blame = blamed(snapshot)
        if self.log_view is not None:
            self.log_view.blame(blame)
        if bool(blame.culprits) != self._culprits:
            self._culprits = bool(blame.culprits)
            self.refresh_bindings()

    @work(group="large", description="large panes")  # by default the repr of the whole snapshot, which takes 50 ms
    async def _show_large_in_turn(self, snapshot: Snapshot) -> None:
        """Draw the large panes one by one, so that a key waits for at most one of them."""
        self._drawn_at = time.monotonic()
        for pane in self._large():
            pane.show(snapshot)
            await asyncio.sleep(0)
        self._blame(snapshot)
        self._charted = snapshot
        self._show_head()

    # Panes

    def on_mount(self) -> None:
        if self.arrangement.stacked:
            self.query_one("#chart0").focus()
        self.arrangement.arrange()

    def on_resize(self, event: Resize) -> None:
        """Lay the panes out again, unless the screen is opening or closing: some panes are missing then."""
        super().on_resize(event)
        if self.is_mounted and self.is_attached:
            self.arrangement.arrange()

    def action_pane(self, by: int) -> None:
        names = self.arrangement.names()
        at = names.index(self.arrangement.pane) if self.arrangement.pane in names else 0
        self.go_to(names[(at + by) % len(names)])

    def go_to(self, name: str) -> None:
        """Focus a pane."""
        self.arrangement.pane = name
        self.arrangement.arrange()
        pane = self.query_one(f"#{name}")
        if name == "log" and self.log_view is not None:
            self.log_view.lines.focus()
        else:
            pane.focus()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        for widget in event.widget.ancestors_with_self:
            if isinstance(widget, Widget) and widget.has_class("pane") and widget.id and widget.id != "story":
                moved, self.arrangement.pane = self.arrangement.pane != widget.id, widget.id
                if moved and self.has_class("-stack"):
                    self.arrangement.arrange()

    def title_clicked(self, pane: Widget) -> bool:
        """Go to the pane; return False for the story and the load, which have no keys."""
        takes_keys = pane.id is not None and pane.id in self.arrangement.names()
        if takes_keys:
            self.go_to(str(pane.id))
        return takes_keys

    def action_zoom(self) -> None:
        """Show this pane alone, or all panes."""
        self.arrangement.zoomed = not self.arrangement.zoomed
        self.go_to(self.arrangement.pane)

    async def action_back(self) -> None:
        """Leave the zoom, then the chosen rank, then this screen."""
        if self.arrangement.zoomed:
            self.action_zoom()
        elif self.query_one(RankGrid).cursor is not None:
            self.action_all_ranks()
        else:
            self.leaving()
            await super().action_back()

    def leaving(self) -> None:
        """Handle the user leaving the screen."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer actions on an ended run only after its end, and the log's prompts only outside of inputs."""
        if action == "log" and isinstance(self.focused, Input):
            return False
        if action in ("again", "resume"):
            usable = self.over and self.known is not None and (action == "again" or self._ended.checkpoint is not None)
            return usable and super().check_action(action, parameters) is True
        if action == "pull":
            usable = self.over and self.known is not None and not self.known.sandbox
            return usable and super().check_action(action, parameters) is True
        if action == "copy_story":
            return self.over
        if action == "edit_failure":
            return self.snapshot is not None and self._ended.frame(self.snapshot) is not None
        return super().check_action(action, parameters)

    # Ranks and logs

    def action_rank(self, digit: int) -> None:
        typed, when = self._typed
        now = self.disttui.typed_at
        number = (typed if now - when < TYPING else "") + str(digit)
        if self.snapshot and int(number) >= self.snapshot.state.world_size:
            number = str(digit)
            if digit >= self.snapshot.state.world_size:
                return
        self._typed = (number, now)
        self.choose_rank(int(number))

    def choose_rank(self, rank: int | None) -> None:
        """Show one rank's log and its line in the charts; None shows all ranks."""
        self.query_one(RankGrid).choose(rank)
        for chart in self.query(Chart):
            chart.rank = rank
        if self.log_view is not None:
            self.log_view.show_ranks(None if rank is None else [rank])
        self.log_pane.border_title = "Log" if rank is None else f"Log · rank {rank}"

    def action_all_ranks(self) -> None:
        self.choose_rank(None)

    def action_log(self, kind: str) -> None:
        if self.log_view is not None:
            # Not go_to, which sets the focus later and would take it from the prompt.
            self.arrangement.pane = "log"
            self.arrangement.arrange()
            self.log_view.action_ask(kind)

    @on(HostsPane.Opened)
    def _show_log_of(self, event: HostsPane.Opened) -> None:
        if self.snapshot is None or self.log_view is None:
            return
        node, hosts = int(event.key), self.snapshot.state.hosts
        first = sum(host.nproc for host in hosts[:node])
        self.choose_rank(first)
        self.log_view.show_ranks(list(range(first, first + hosts[node].nproc)))
        self.log_pane.border_title = Content(f"Log · {clean(hosts[node].name)}")
        self.go_to("log")

    def on_rank_grid_rank_chosen(self, event: RankGrid.RankChosen) -> None:
        self.choose_rank(event.rank)
        self.go_to("log")

    def on_log_view_rank_chosen(self, event: LogView.RankChosen) -> None:
        """Choose the rank in the ranks, the charts and the title of the log as well."""
        self.choose_rank(event.rank)

    def on_rank_grid_rank_blamed(self, event: RankGrid.RankBlamed) -> None:
        self.choose_rank(event.rank)
        if self.log_view is not None:
            self.log_view.go_to_failing(event.rank)
            if self.log_pane.has_class("-off"):
                self.go_to("log")

    def action_blamed(self) -> None:
        """Go to the culprit, from any pane."""
        self.query_one(RankGrid).action_slowest()

    def on_timeline_pane_moment_chosen(self, event: TimelinePane.MomentChosen) -> None:
        self.show_moment(event.moment)

    def show_moment(self, moment: Moment) -> None:
        """Show the log of a moment's rank."""
        if moment.rank is not None:
            self.choose_rank(moment.rank)
            self.go_to("log")

    @work(group="pick")
    async def on_chart_pick_requested(self, event: Chart.PickRequested) -> None:
        if self.snapshot is None:
            return
        now = event.chart.metric
        offered = [(one.name, one.label) for one in available(self.snapshot.history)]
        if offered:
            chosen = await self.app.push_screen_wait(PickScreen("Show", offered, now.name if now else None))
            if chosen:
                event.chart.chosen = chosen
                event.chart.show(self.snapshot)

    # The log

    @abstractmethod
    def fetch_earlier(self, wanted: Sequence[Older]) -> None:
        """Fetch beginnings of logs into the mirror; called in a thread. Raises DisttuiError."""

    def on_log_view_older_requested(self, event: LogView.OlderRequested) -> None:
        self._fetch_older(event.wanted)

    @work(thread=True, group="earlier", exit_on_error=False)
    def _fetch_older(self, wanted: Sequence[Older]) -> None:
        problem = None
        try:
            self.fetch_earlier(wanted)
        except DisttuiError as error:
            problem = error
        self.call_later(self._show_older, problem)

    def _show_older(self, problem: DisttuiError | None) -> None:
        """Show the fetched lines, and report why some are missing."""
        if (view := self.log_view) is None:
            return
        if problem is not None:
            self.notify(str(problem), title="cannot fetch earlier lines", severity="warning")
            view.older_refused()
        view.read_anew()

    def on_log_view_yanked(self, event: LogView.Yanked) -> None:
        self.disttui.copy(event.text)

    def on_log_view_pager_requested(self, event: LogView.PagerRequested) -> None:
        try:
            open_pager(self.app, self.disttui.environ, event.path, event.line)
        except InputError as error:
            self.notify(str(error), severity="error")

    @work(group="diagnose", exclusive=True)
    async def action_diagnose(self) -> None:
        """Open the dialog with the stack of every rank, or with the reason why the run failed."""
        from disttui.tui.dashboard.diagnosis import DiagnosisScreen

        if self.known is not None and self.snapshot is not None:
            await self.app.push_screen(DiagnosisScreen(self.known))

    # The end of the run

    @property
    def over(self) -> bool:
        """Whether the run has ended at the time that is shown."""
        return self.snapshot is not None and self.snapshot.state.result is not None

    def _offer_resume(self, checkpoint: Checkpoint) -> None:
        self._ended.checkpoint = checkpoint
        self.refresh_bindings()

    def action_again(self) -> None:
        """Open the form to rerun the run."""
        self._run_again(resume=False)

    def action_resume(self) -> None:
        """Open the form to rerun the run, with its newest checkpoint selected."""
        self._run_again(resume=True)

    @work(group="ask", exclusive=True)
    async def _run_again(self, *, resume: bool) -> None:
        if self.known is not None:
            await run_again(self.disttui, self.known, resume=resume)

    def action_pull(self) -> None:
        if self.known is not None:
            self.disttui.router.open_pull(self.known.run)

    def action_copy_story(self) -> None:
        """Copy how the run ended, as `disttui runs show` prints it."""
        if self.snapshot is not None and self.over:
            self.disttui.copy(story(self.snapshot, self.known))

    def action_edit_failure(self) -> None:
        """Open the user's editor where the run failed, if this machine has that file."""
        if self.snapshot is not None:
            self._ended.edit(self.app, self.disttui.environ, self.snapshot, self.known)
