"""The replay of a run: the dashboard from its mirror, with a cursor in time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.binding import ActiveBinding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from runner.api.beginnings import fetch_beginnings
from runner.errors import DisttuiError, InputError
from runner.ids import short
from runner.runs.registry import find_run
from tui.charts.chart import Chart
from tui.dashboard.run_screen import RunScreen
from tui.keys import MOVE, PANE_KEYS, VIEW, bind
from tui.log import Older
from tui.log.moments import place_at
from tui.replay.bar import ReplayBar
from tui.replay.player import ReplayFeed, ReplayLoading
from tui.run.events import Moment
from tui.run.feed import FeedFailed, RunChanged, Snapshot

_LOOKS = 30
"""How often, at 0.1 s, to look whether the log of another attempt has been read."""


class ReplayScreen(RunScreen):
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
        bind("replay.edit", "v", "edit_failure", "edit line", "open $EDITOR at the line that failed", group=VIEW),
        *PANE_KEYS,
    ]

    def __init__(self, run: str) -> None:
        super().__init__(self._fetch_earlier)
        self.run_id = run
        self._feed: ReplayFeed | None = None
        self._turning: int | None = None
        """The attempt whose log is being read, to show it at the cursor afterwards."""

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """The label of the key that plays is what it does now."""
        found = super().active_bindings
        for key, one in found.items() if self._plays else ():
            if one.binding.id == "replay.play":
                found[key] = one._replace(binding=replace(one.binding, description="pause"))
        return found

    @property
    def _plays(self) -> bool:
        playback = self.snapshot.playback if self.snapshot else None
        return playback is not None and playback.playing

    @property
    def again(self) -> str:
        """The command that opens this screen."""
        return f"disttui replay {short(self.run_id)}"

    def body(self) -> Iterable[Widget]:
        """Yield the panes, and the cursor's bar under them."""
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
            from tui.replay.example import unpacked

            return unpacked(self.disttui.environ)
        folder = Path(self.run_id)
        if (folder / "run.json").exists() or (folder / "0").is_dir():
            return folder
        try:
            self.known = find_run(self.run_id, self.disttui.environ)
            return self.known.folder
        except InputError as error:
            raise InputError(
                error.sentence, error.cure or "Give the folder of a mirror, a run's id, or `example`."
            ) from None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the space key to an input that has the focus."""
        if action == "play" and isinstance(self.focused, Input):
            return False
        return super().check_action(action, parameters)

    def on_unmount(self) -> None:
        """End the thread."""
        if self._feed:
            self._feed.close()

    def on_replay_loading(self, event: ReplayLoading) -> None:
        """Show how much of the mirror has been read."""
        self.header.show(self.run_id, state="loading", right=f"{event.share * 100:.0f} %")

    def on_run_changed(self, event: RunChanged) -> None:
        """Show it."""
        first, played = self.snapshot is None, self._plays
        snapshot = event.snapshot
        self.show(snapshot, at_once=snapshot.playback is not None and not snapshot.playback.playing)
        bar = self.query_one(ReplayBar)
        if first:
            bar.mark(tuple((moment.time, moment.look) for moment in snapshot.moments))
            hosts = snapshot.state.hosts
            self.show_log(snapshot.mirror, [host.name for host in hosts], hosts[0].story.offsets)
            if view := self.log_view:
                view.call_later(self._show_lines_now)  # as soon as it is mounted: in a pause no snapshot comes later
        bar.show(snapshot)
        if self._plays != played:
            self.refresh_bindings()
        self._show_lines_of(snapshot)

    def _show_lines_of(self, snapshot: Snapshot) -> None:
        """Show the log up to the cursor's attempt and time, as far as its lines have times."""
        view = self.log_view
        if view is None or not view.is_mounted:
            return
        over = snapshot.playback is None or snapshot.now >= snapshot.playback.end or snapshot.state.result is not None
        view.lines.show_until(math.inf if over else snapshot.now)
        progress = view.lines.progress
        log = progress.work.log
        attempt = snapshot.state.attempt or min(log.attempts, default=0)
        if attempt and attempt == self._turning and attempt != log.attempt:
            return
        if attempt and attempt != log.attempt and attempt in log.attempts:
            view.show_attempt(attempt)
            self._turning = attempt
            self._when_read(attempt)
        elif snapshot.state.result is not None:
            view.lines.action_follow()
        elif log.timed and progress.total:
            view.lines.jump(max(0, place_at(log, snapshot.now, progress.total) - 1))

    def _show_lines_now(self) -> None:
        if self.snapshot is not None:
            self._show_lines_of(self.snapshot)

    def _when_read(self, attempt: int, looks: int = 0) -> None:
        """Show the log of another attempt up to the cursor, also in a pause, when no snapshot comes."""
        view = self.log_view
        if attempt != self._turning or view is None or not view.is_mounted or self.snapshot is None:
            return
        progress = view.lines.progress
        here = progress.work.log.attempt == attempt
        if here and progress.complete:
            self._turning = None
            self._show_lines_now()
        elif here or looks < _LOOKS:
            self.set_timer(0.1, partial(self._when_read, attempt, looks + (not here)))
        else:
            self._turning = None  # another one was chosen meanwhile

    def _fetch_earlier(self, wanted: Sequence[Older]) -> None:
        """Fetch from the hosts of a run that this machine knows; never write a mirror that another process writes."""
        if self.known is None:
            raise InputError("this recording does not say where the run's hosts are")
        fetch_beginnings(self.disttui.viewer(), self.known, wanted)

    def on_feed_failed(self, event: FeedFailed) -> None:
        """Say why the run cannot be played."""
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

    def on_chart_sought(self, event: Chart.Sought) -> None:
        """Put the cursor there."""
        if self._feed:
            self._feed.seek(event.time)

    def on_replay_bar_sought(self, event: ReplayBar.Sought) -> None:
        """Put the cursor there."""
        if self._feed:
            self._feed.seek(event.time)

    def action_play(self) -> None:
        """Play, or pause."""
        if self._feed:
            self._feed.play()

    def action_step(self, by: int) -> None:
        """Move the cursor by `by` hundredths of the run."""
        if self._feed and self.snapshot and self.snapshot.playback:
            play = self.snapshot.playback
            self._feed.go(by * max(0.5, (play.end - play.begin) / 100))

    def action_moment(self, by: int) -> None:
        """Go to the next event, or the one before."""
        if self._feed:
            self._feed.to_moment(by)

    def action_end(self, last: bool) -> None:
        """Go to the end or the beginning."""
        if self._feed:
            self._feed.last() if last else self._feed.first()

    def action_speed(self, by: int) -> None:
        """Play faster or slower."""
        if self._feed:
            self._feed.faster(by)
