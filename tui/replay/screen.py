"""The replay of a run: the dashboard, shown from its mirror at a cursor in time."""

from __future__ import annotations

import hashlib
import io
import math
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events, work
from textual.binding import BindingType
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from disttui.runner import private
from disttui.runner.api.following import complete, fetch_beginnings
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import duration
from disttui.runner.ids import short
from disttui.runner.paths import inside
from disttui.runner.runs.registry import find_run, is_mirror
from disttui.runner.runs.summary import RunStatus, cause_text
from disttui.runner.user.folders import user_folder
from disttui.tui.charts.chart import Sought
from disttui.tui.dashboard.run_screen import RunScreen
from disttui.tui.keys import MOVE, PANE_KEYS, VIEW, bind
from disttui.tui.log import Older
from disttui.tui.log.sources import place_at
from disttui.tui.log.widget import NOTHING_YET
from disttui.tui.replay.player import ReplayFeed, ReplayLoading
from disttui.tui.run.events import Moment
from disttui.tui.run.feed import FeedFailed, RunChanged, Snapshot
from disttui.tui.theme import look
from disttui.tui.widgets.drawn import Drawn, Piece, cells, line

if TYPE_CHECKING:
    from disttui.runner.api.viewer import Viewer


class ReplayBar(Drawn):
    """The bar `▶ playing ×10  0:50 ━━━━●──✗───── 1:49`, with failures marked. A click moves the cursor."""

    DEFAULT_CSS = "ReplayBar { height: 1; padding: 0 1; background: $surface; }"
    MARKED: ClassVar[tuple[str, ...]] = ("failed", "warning", "not seen", "lost", "slow")
    _snapshot: Snapshot | None = None
    _place = (0, 1)

    def show(self, snapshot: Snapshot) -> None:
        """Show the time of a snapshot."""
        self._snapshot = snapshot
        self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Draw the speed, the time, the bar and the length."""
        if self._snapshot is None or self._snapshot.playback is None:
            return []
        play, now = self._snapshot.playback, self._snapshot.now
        length = max(0.001, play.end - play.begin)
        quiet = self.component("muted")
        total = duration(length)
        state = "▶ playing" if play.playing else "‖ paused "
        left: list[Piece] = [
            f"{state} ",
            (f"×{play.speed:<4g}", quiet),
            f" {duration(now - play.begin):>{len(total)}} ",
        ]
        room = max(4, width - cells(left) - len(total) - 1)
        self._place = (width - room - len(total) - 1, room)
        at = min(room - 1, int((now - play.begin) / length * room))
        done, rest = self.component("accent"), self.component("rule")
        bar: list[Piece] = [("━", done) if cell < at else ("─", rest) for cell in range(room)]
        for moment in play.moments:
            if moment.look in self.MARKED:
                place = max(0, min(room - 1, int((moment.time - play.begin) / length * room)))
                bar[place] = (look(moment.look).glyph, self.component(look(moment.look).css))
        bar[at] = ("●", done)
        return [line([*left, *bar, (f" {total}", quiet)])]

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        start, room = self._place
        if offset is not None and self._snapshot and self._snapshot.playback and start <= offset.x < start + room:
            play = self._snapshot.playback
            self.post_message(Sought(play.begin + (offset.x - start + 0.5) / room * (play.end - play.begin)))


PACKED = Path(__file__).with_name("example.zip")


def unpacked(environ: Mapping[str, str]) -> Path:
    """The example's mirror, unpacked once into the user's cache. Raises InputError if that cannot be written."""
    data = PACKED.read_bytes()
    home = user_folder("cache", environ)
    folder = inside(home, f"example-{hashlib.sha256(data).hexdigest()[:12]}")
    if folder.is_dir():
        return folder
    try:
        private.make_folder(home)
        made = Path(tempfile.mkdtemp(dir=home))
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            packed.extractall(made)
        try:
            made.rename(folder)
        except OSError:
            # Another process has just unpacked it.
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{home}: {error.strerror}", "Free space, or set XDG_CACHE_HOME to another folder.") from None
    return folder


class ReplayScreen(RunScreen):
    """Shows a run from its mirror at a cursor in time.

    Args:
        run: A run's id, the folder of a mirror, or `example`.
        playing: Whether to play it from its beginning instead of showing its end.
    """

    HELP = (
        "A recorded run at any moment: state, ranks and events are those at the cursor's time, which is shown in the "
        "bar above the keys and as ▲ in the charts."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("replay.play", "space", "play", "play", "play, or pause", group=VIEW, priority=True),
        bind("replay.back", "left,comma", "step(-1)", "step back", "move the cursor one step back", group=MOVE,
             show=False),
        bind("replay.on", "right,full_stop", "step(1)", "step", "move the cursor one step forward", group=MOVE),
        bind("replay.page_back", "less_than_sign", "step(-10)", "back", "ten steps back", group=MOVE, show=False),
        bind("replay.page_on", "greater_than_sign", "step(10)", "forward", "ten steps forward", group=MOVE, show=False),
        bind("replay.next", "e", "moment(1)", "event", "next event", group=MOVE),
        bind("replay.before", "E", "moment(-1)", "previous event", group=MOVE, show=False),
        bind("replay.first", "home", "end(False)", "start", "beginning", group=MOVE, show=False),
        bind("replay.last", "end", "end(True)", "end", "end", group=MOVE, show=False),
        bind("replay.slower", "underscore", "speed(-1)", "slower", "play slower", group=VIEW, show=False),
        bind("replay.faster", "x", "speed(1)", "faster", "play faster; _ plays slower", group=VIEW),
        bind("replay.diagnose", "d", "diagnose", "diagnose", "show how and why it ended", group=VIEW),
        bind("replay.edit", "v", "edit_failure", "edit line", "open $EDITOR at the failing line", group=VIEW),
        *PANE_KEYS,
    ]  # fmt: skip

    def __init__(self, run: str, playing: bool = False) -> None:
        super().__init__()
        self.run_id = run
        self._from_beginning = playing
        self._feed: ReplayFeed | None = None
        self._viewer: Viewer | None = None
        """The viewer that fetches missing parts of the run, if one was needed."""
        self._lacking: list[str] = []
        """Why part of the run is missing on this machine."""
        self._left = False
        self._reading = False
        """Whether a log is being read, and must be shown at the cursor afterwards."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of every run's screen, and "pause" for the play key while playing."""
        return {**super().labels, **({"replay.play": "pause"} if self._plays else {})}

    @property
    def _plays(self) -> bool:
        playback = self.snapshot.playback if self.snapshot else None
        return playback is not None and playback.playing

    @property
    def again(self) -> str:
        """The command that opens this screen."""
        return f"disttui runs replay {short(self.run_id)}"

    def body(self) -> Iterable[Widget]:
        """Yield the panes, and the bar of the cursor below them."""
        yield from super().body()
        yield ReplayBar()

    def on_mount(self) -> None:
        self.header.show(self.run_id, state="loading")
        try:
            mirror = self._mirror()
        except DisttuiError as error:
            self._fail(error)
        else:
            # Not here: a screen gets no unmount event if the app ends while it opens.
            self.call_later(self._play, mirror)

    @work(thread=True, group="feed", exit_on_error=False)
    def _play(self, mirror: Path) -> None:
        """Fetch the missing parts of the run, then start the feed."""
        try:
            if self.known is not None:
                # A separate viewer, because closing it also aborts a connection attempt that hangs.
                with self.disttui.new_viewer() as viewer:
                    self._viewer = viewer
                    self._lacking = [] if self._left else complete(viewer, self.known, self._fetched)
        except DisttuiError as error:
            self._lacking = [error.sentence]
        lost = ""
        if self.known is not None:
            seen = self.known.summary()
            lost = cause_text(seen) if seen["state"] == "lost" else ""
            self._lacking += _last_heard(seen) if self._lacking else []
        if not self._left:
            self._feed = ReplayFeed(self, mirror, self._lacking, lost, playing=self._from_beginning)
            self._feed.start()

    def _fetched(self, share: float) -> None:
        self.post_message(ReplayLoading(share, "fetching"))

    def _mirror(self) -> Path:
        if self.run_id == "example":
            return unpacked(self.disttui.environ)
        folder = Path(self.run_id)
        if is_mirror(folder):
            return folder
        try:
            self.known = find_run(self.run_id, self.disttui.environ)
            return self.known.folder
        except InputError as error:
            raise InputError(
                error.sentence, error.cure or "Give a run's id, a mirror's folder, or `example`."
            ) from None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the space key to an input that has the focus; offer to diagnose only a run that this machine knows."""
        if action == "diagnose" and self.known is None:
            return False
        if action == "play" and isinstance(self.focused, Input):
            return False
        return super().check_action(action, parameters)

    def on_unmount(self) -> None:
        self._left = True
        if self._feed:
            self._feed.close()
        elif self._viewer is not None:
            threading.Thread(target=self._viewer.close, name="apart", daemon=True).start()

    def on_replay_loading(self, event: ReplayLoading) -> None:
        """Show how much of the run has been fetched or read."""
        if self.snapshot is None:
            self.header.show(self.run_id, state=event.state, right=f"{event.share * 100:.0f} %")

    def on_run_changed(self, event: RunChanged) -> None:
        first, played = self.snapshot is None, self._plays
        snapshot = event.snapshot
        self.show(snapshot, at_once=snapshot.playback is not None and not snapshot.playback.playing)
        bar = self.query_one(ReplayBar)
        if first:
            hosts = snapshot.state.hosts
            self.show_log(snapshot.mirror, hosts, hosts[0].story.offsets)
            if view := self.log_view:
                view.call_later(self._show_lines_now)  # once it is mounted, because a pause brings no other snapshot
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
        if self._lacking:
            view.lines.nothing = "Its log is not on this machine."
        else:
            view.lines.nothing = "The ranks printed nothing." if over else NOTHING_YET
        view.lines.show_until(math.inf if over else snapshot.now)
        log, progress = view.reading.log, view.lines.progress
        attempt = snapshot.state.attempt or min(log.attempts, default=0)
        if attempt and attempt != log.attempt and attempt in log.attempts:
            view.show_attempt(attempt)
            self._reading = True
        elif snapshot.state.result is not None:
            view.lines.action_follow()
        else:
            read = progress.work.log is log
            if log.timed and read and progress.total:
                view.lines.jump(max(0, place_at(log, snapshot.now, progress.total) - 1))
            if not (read and progress.complete):
                self._reading = True

    def _show_lines_now(self) -> None:
        if self.snapshot is not None:
            self._show_lines_of(self.snapshot)

    def on_log_view_loaded(self) -> None:
        """Show the log up to the cursor, even in a pause, which brings no snapshots."""
        if self._reading:
            self._reading = False
            self._show_lines_now()

    def fetch_earlier(self, wanted: Sequence[Older]) -> None:
        """Fetch the lines from the hosts of a run that this machine knows. Raises InputError for any other mirror."""
        if self.known is None:
            raise InputError("this recording has no addresses of its hosts")
        fetch_beginnings(self.disttui.viewer(), self.known, wanted)

    def on_feed_failed(self, event: FeedFailed) -> None:
        if self._lacking:
            self._fail(InputError("; ".join(["nothing of this run is on this machine", *self._lacking])), "incomplete")
        else:
            self._fail(event.error)

    def _fail(self, error: DisttuiError, state: str = "failed") -> None:
        self.header.show(self.run_id, state=state)
        self.app.notify(str(error), severity="error", timeout=15)

    def show_moment(self, moment: Moment) -> None:
        """Move the cursor to a moment, and choose its rank."""
        if self._feed:
            self._feed.seek(moment.time)
        if moment.rank is not None:
            self.choose_rank(moment.rank)

    def on_sought(self, event: Sought) -> None:
        if self._feed:
            self._feed.seek(event.moment)

    def action_play(self) -> None:
        if self._feed:
            self._feed.play()

    def action_step(self, by: int) -> None:
        """Move the cursor by `by` steps of a hundredth of the run, at least 0.5 s each."""
        if self._feed and self.snapshot and self.snapshot.playback:
            play = self.snapshot.playback
            self._feed.go(by * max(0.5, (play.end - play.begin) / 100))

    def action_moment(self, by: int) -> None:
        """Go to the next or previous event."""
        if self._feed:
            self._feed.to_moment(by)

    def action_end(self, last: bool) -> None:
        if self._feed:
            self._feed.seek(math.inf if last else 0.0)

    def action_speed(self, by: int) -> None:
        if self._feed:
            self._feed.faster(by)


def _last_heard(seen: RunStatus) -> list[str]:
    """What the hosts of an incomplete run last reported; empty if they did not report its end."""
    if not seen.get("ended"):
        return []
    step = f" at step {seen['step']:,}" if "step" in seen else ""
    cause = f": {words}" if (words := cause_text(seen)) else ""
    return [f"its hosts reported: {seen['state']}{step}{cause}"]
