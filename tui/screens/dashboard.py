"""The dashboard of a run that goes on, and the replay of one that has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget

from runner.errors import DisttuiError, InputError
from runner.run.history import KnownRun, find_run
from tui.attach import attached
from tui.events import Moment
from tui.feed import FeedFailed, LiveFeed, RunChanged, Snapshot
from tui.keys import CHANGE, MOVE, VIEW, bind
from tui.logs import LogSources, LogView
from tui.logs.moments import place_at
from tui.replay import ReplayFeed, ReplayLoading
from tui.screens.base import Command
from tui.screens.panes import PanesScreen
from tui.widgets.progress import run_word
from tui.widgets.replay_bar import ReplayBar


class RunFound(Message):
    """The run is known, and is followed now."""

    def __init__(self, known: KnownRun, feed: LiveFeed, mirror: Path) -> None:
        super().__init__()
        self.known = known
        self.feed = feed
        self.mirror = mirror


class DashboardScreen(PanesScreen):
    """A run, live.

    Args:
        run_id: The run's id, or the beginning of it.
    """

    HELP = (
        "A run as it goes on: its hosts, what every rank does and how fast, its numbers over time, what has happened, "
        "and the ranks' output. Leaving this screen leaves the run alone. Colours go from blue (little, quick) to "
        "orange (much, slow); a rank is called slow from 1.5 times the median on."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("dash.stop", "s", "stop", "stop", "stop the run on all hosts; once more: kill it", group=CHANGE),
        bind("dash.diagnose", "d", "diagnose", "diagnose", "ask every rank what it is doing", group=VIEW),
    ]

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._feed: LiveFeed | None = None
        self._known: KnownRun | None = None
        self._stops = 0
        self._left = threading.Event()

    def on_mount(self) -> None:
        """Follow the run."""
        self.header.show(self.run_id, state="connecting")
        self.set_interval(1.0, self._tick)
        self._follow()

    def on_unmount(self) -> None:
        """Leave the run to itself."""
        self._left.set()

    @work(thread=True, group="feed", exit_on_error=False)
    def _follow(self) -> None:
        try:
            with attached(self.disttui, self.run_id) as (known, way):
                feed = LiveFeed(self, way)
                self.post_message(RunFound(known, feed, way.folder))
                feed.start()
                self._left.wait()
                feed.close()
        except DisttuiError as error:
            self.post_message(FeedFailed(error))

    def on_run_found(self, event: RunFound) -> None:
        """Show its logs from the mirror."""
        self._known, self._feed = event.known, event.feed
        self.run_id = event.known.run
        names = [host.name for host in event.known.hosts]
        self.show_log(LogView(LogSources(event.mirror, names), read_only=self.disttui.read_only))

    def on_run_changed(self, event: RunChanged) -> None:
        """Show it."""
        self.show(event.snapshot)

    def on_feed_failed(self, event: FeedFailed) -> None:
        """Say what is wrong; what is on the screen stays."""
        self.app.notify(str(event.error), severity="error", timeout=15)
        if self.snapshot is None:
            self.header.show(self.run_id, state="failed")

    def _tick(self) -> None:
        snapshot = self.snapshot
        if snapshot is not None and snapshot.state.result is None:
            self.snapshot = replace(snapshot, now=time.time())
            self.show(self.snapshot)

    def commands(self) -> Iterator[Command]:
        """Ranks and actions for the palette."""
        yield Command("Stop this run", "All ranks on all hosts; asks first", self.action_stop)
        yield Command("Diagnose", "Ask every rank what it is doing", self.action_diagnose)
        count = self.snapshot.state.world_size if self.snapshot else 0
        for rank in range(min(count, 256)):
            yield Command(f"Rank {rank}", "Its log and its line in the charts", partial(self.choose_rank, rank))

    @work(group="ask", exclusive=True)
    async def action_stop(self) -> None:
        """Stop, after a question that says what will happen; a second time, kill."""
        snapshot, feed = self.snapshot, self._feed
        if snapshot is None or feed is None or self.disttui.read_only:
            return
        if snapshot.state.result is not None:
            self.app.notify("the run has ended already")
            return
        count, hosts = snapshot.state.world_size, len(snapshot.state.hosts)
        if self._stops == 0:
            question = f"Stop {snapshot.state.run}?"
            where = f"{hosts} host{'s' if hosts > 1 else ''}"
            will = (
                f"{count} rank{'s' if count > 1 else ''} on {where} get SIGTERM and time to save a checkpoint; "
                "what is left after that is killed. Logs, metrics and checkpoints stay."
            )
        else:
            question = f"Kill {snapshot.state.run} now?"
            will = "Every process of the run is killed at once; nothing more is saved."
        if await self.disttui.ask(question, will, "kill" if self._stops else "stop"):
            feed.stop()
            self._stops += 1
            self.app.notify("killing" if self._stops > 1 else "stopping; s again kills at once")

    @work(group="diagnose", exclusive=True)
    async def action_diagnose(self) -> None:
        """Ask every rank for its stack and tell what that means."""
        from tui.screens.diagnosis import DiagnosisScreen  # noqa: PLC0415 - opened now and then

        if self._known is not None and self.snapshot is not None:
            await self.app.push_screen(DiagnosisScreen(self._known))

    def leaving(self) -> None:
        """The run goes on."""
        snapshot = self.snapshot
        if snapshot is not None and snapshot.state.result is None and run_word(snapshot) != "not seen":
            self.app.notify(f"{snapshot.state.run} goes on; disttui attach {snapshot.state.run} shows it again")


class ReplayScreen(PanesScreen):
    """A run from its mirror, with a cursor in time.

    Args:
        run: A run's id, the folder of a mirror, or `example`.
    """

    HELP = (
        "A run from what was recorded of it, at any moment of its life: state, ranks and events are those of the "
        "cursor's time, which stands in the bar above the keys and as ▲ in the charts."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("replay.play", "space", "play", "play", "play, or pause", group=VIEW, priority=True),
        bind(
            "replay.back", "left,comma", "step(-1)", "step back", "one step of the cursor back", group=MOVE, show=False
        ),
        bind("replay.on", "right,full_stop", "step(1)", "step", "one step of the cursor on", group=MOVE),
        bind("replay.page_back", "less_than_sign", "step(-10)", "back", "ten steps back", group=MOVE, show=False),
        bind("replay.page_on", "greater_than_sign", "step(10)", "on", "ten steps on", group=MOVE, show=False),
        bind("replay.next", "e", "moment(1)", "event", "to the next event", group=MOVE),
        bind("replay.before", "E", "moment(-1)", "event before", "to the event before", group=MOVE, show=False),
        bind("replay.first", "home", "end(False)", "begin", "to the beginning", group=MOVE, show=False),
        bind("replay.last", "end", "end(True)", "end", "to the end", group=MOVE, show=False),
        bind("replay.slower", "underscore", "speed(-1)", "slower", "play slower", group=VIEW, show=False),
        bind("replay.faster", "x", "speed(1)", "faster", "play faster; _ plays slower", group=VIEW),
    ]

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run_id = run
        self._feed: ReplayFeed | None = None

    def body(self) -> Iterable[Widget]:
        """The panes, and the cursor under them."""
        yield from super().body()
        yield ReplayBar()

    def on_mount(self) -> None:
        """Read the mirror."""
        self.header.show(self.run_id, state="loading")
        try:
            mirror = self._mirror()
        except DisttuiError as error:
            self._fail(error)
            return
        self._feed = ReplayFeed(self, mirror)
        self._feed.start()

    def _mirror(self) -> Path:
        if self.run_id == "example":
            from tui.example import unpacked  # noqa: PLC0415 - zip and hashes are for the example alone

            return unpacked(self.disttui.environ)
        folder = Path(self.run_id)
        if (folder / "run.json").exists() or (folder / "0").is_dir():
            return folder
        try:
            return find_run(self.run_id, self.disttui.environ).folder
        except InputError as error:
            raise InputError(
                error.what, error.cure or "Give the folder of a mirror, a run's id, or `example`."
            ) from None

    def on_unmount(self) -> None:
        """End the thread."""
        if self._feed:
            self._feed.close()

    def on_replay_loading(self, event: ReplayLoading) -> None:
        """Say how far it is."""
        self.header.show(self.run_id, state="loading", right=f"{event.share * 100:.0f} %")

    def on_run_changed(self, event: RunChanged) -> None:
        """Show it."""
        first = self.snapshot is None
        snapshot = event.snapshot
        self.show(snapshot, at_once=snapshot.playback is not None and not snapshot.playback.playing)
        bar = self.query_one(ReplayBar)
        if first:
            bar.mark(tuple((told.time, told.look) for told in snapshot.moments))
            names = [host.name for host in snapshot.state.hosts]
            self.show_log(LogView(LogSources(snapshot.mirror, names), read_only=self.disttui.read_only))
        bar.show(snapshot)
        self._show_lines_of(snapshot)

    def _show_lines_of(self, snapshot: Snapshot) -> None:
        """Bring the log to the cursor's attempt and time, as far as its lines have times."""
        view = next(iter(self.query(LogView)), None)
        if view is None or not view.is_mounted:
            return
        progress = view.lines.progress
        log, attempt = progress.work.log, snapshot.state.attempt
        if attempt and attempt != log.attempt and attempt in log.attempts:
            view.show_attempt(attempt)
        elif snapshot.state.result is not None:
            view.lines.action_follow()
        elif log.timed and progress.total:
            view.lines.jump(max(0, place_at(log, snapshot.now, progress.total) - 1))

    def on_feed_failed(self, event: FeedFailed) -> None:
        """There is nothing to play."""
        self._fail(event.error)

    def _fail(self, error: DisttuiError) -> None:
        self.header.show(self.run_id, state="failed")
        self.app.notify(str(error), severity="error", timeout=15)

    def show_moment(self, moment: Moment) -> None:
        """Put the cursor there."""
        if self._feed:
            self._feed.seek(moment.time)
        if moment.rank is not None:
            self.choose_rank(moment.rank)

    def on_replay_bar_sought(self, event: ReplayBar.Sought) -> None:
        """Put the cursor there."""
        if self._feed:
            self._feed.seek(event.time)

    def action_play(self) -> None:
        """Play, or pause."""
        if self._feed:
            self._feed.play()

    def action_step(self, by: int) -> None:
        """A hundredth of the run."""
        if self._feed and self.snapshot and self.snapshot.playback:
            play = self.snapshot.playback
            self._feed.go(by * max(0.5, (play.end - play.begin) / 100))

    def action_moment(self, by: int) -> None:
        """To the next event."""
        if self._feed:
            self._feed.to_moment(by)

    def action_end(self, last: bool) -> None:
        """To one of the ends."""
        if self._feed:
            self._feed.last() if last else self._feed.first()

    def action_speed(self, by: int) -> None:
        """Faster, or slower."""
        if self._feed:
            self._feed.faster(by)
