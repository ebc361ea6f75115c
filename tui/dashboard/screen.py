"""The dashboard of a live run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.binding import BindingType
from textual.message import Message

from disttui.runner.api.finding import find_run
from disttui.runner.api.following import TAIL, follow
from disttui.runner.errors import DisttuiError
from disttui.runner.formatting import amount
from disttui.runner.ids import short
from disttui.runner.runs.condition import run_word
from disttui.runner.runs.hooks import run_end_hook
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.state import RunState
from disttui.runner.user.terminal import Notices
from disttui.tui.dashboard.hosts import HostsPane
from disttui.tui.dashboard.run_screen import RunScreen
from disttui.tui.keys import APP, CHANGE, PANE_KEYS, VIEW, bind
from disttui.tui.log import Older
from disttui.tui.run.feed import FeedFailed, LiveFeed, RunChanged, Snapshot
from disttui.tui.screen import Command


class RunFound(Message):
    """The run was found, and is being followed."""

    def __init__(self, known: KnownRun, feed: LiveFeed, mirror: Path) -> None:
        super().__init__()
        self.known = known
        self.feed = feed
        self.mirror = mirror


class DashboardScreen(RunScreen):
    """The dashboard of a live run.

    Args:
        run_id: The run's id, or a prefix of it.
    """

    HELP = (
        "A live run: its hosts, the state and speed of every rank, metrics over time, events, and the ranks' logs. "
        "Leaving this screen does not stop the run. Colours go from blue (low, fast) to orange (high, slow); a rank "
        "counts as slow from 1.5 times the median."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        bind(
            "dash.back",
            "q",
            "back",
            "back",
            "leave the zoom, the rank, then the screen; the run continues",
            group=APP,
        ),
        bind("dash.stop", "s", "stop", "stop", "stop the run; again: kill it", group=CHANGE),
        bind("dash.diagnose", "d", "diagnose", "diagnose", "what every rank does, or why it failed", group=VIEW),
        bind("dash.edit", "e,v", "edit_failure", "edit line", "open $EDITOR at the failing line", group=VIEW),
        *PANE_KEYS,
    ]

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._feed: LiveFeed | None = None
        self._stops = 0
        self._notices: Notices | None = None
        self._left = threading.Event()

    @property
    def again(self) -> str:
        """The command that opens this screen."""
        return f"disttui attach {short(self.run_id)}"

    def on_mount(self) -> None:
        self.header.show(self.run_id, state="connecting")
        self.set_interval(1.0, self._tick)
        # Not here: a screen gets no unmount event if the app ends while it opens.
        self.call_later(self._follow)

    def on_unmount(self) -> None:
        """Stop following; the run continues."""
        self._left.set()
        if self._notices is not None:
            self._notices.close()

    @work(thread=True, group="end", exit_on_error=False, description="end")
    def _tell_end(self, state: RunState) -> None:
        """Run the profile's hook for the end of a run; the user may leave the screen before the hook ends."""
        if self.known:
            run_end_hook(self.known, state, self.app.notify)

    @work(thread=True, group="feed", exit_on_error=False)
    def _follow(self) -> None:
        try:
            # A separate viewer, because closing it also aborts a connection attempt that hangs.
            with self.disttui.new_viewer() as viewer:
                known = find_run(viewer, self.run_id)
                with follow(viewer, known, tail=TAIL, only_look=self.disttui.read_only) as following:
                    feed = LiveFeed(self, following)
                    self.post_message(RunFound(following.run, feed, following.mirror))
                    feed.start()
                    self._left.wait()
                    feed.close()
                    feed.wait(1.0)
        except DisttuiError as error:
            self.post_message(FeedFailed(error))

    def on_run_found(self, event: RunFound) -> None:
        self.known, self._feed = event.known, event.feed
        self.run_id = event.known.run
        self.show_log(event.mirror, event.known.hosts, {})

    def on_run_changed(self, event: RunChanged) -> None:
        self.show(event.snapshot)
        if self.over and self._stops:
            # The notices about the stop are outdated.
            self._stops = 0
            self.app.clear_notifications()
        self._tell_terminal(event.snapshot)
        if event.snapshot.ended:
            self.refresh_bindings()
        if event.snapshot.ended and event.snapshot.state.result is not None and not self.disttui.read_only:
            self._tell_end(event.snapshot.state)

    def _tell_terminal(self, snapshot: Snapshot) -> None:
        if self._notices is None:
            self._notices = Notices(self.disttui.send, self.disttui.settings, self.disttui.environ)
        self._notices.tell(short(snapshot.state.run), run_word(snapshot.state), over=snapshot.state.result is not None)

    def on_log_view_skip_requested(self) -> None:
        if self._feed:
            self._feed.skip()

    def on_logs_cut(self) -> None:
        if self.log_view is not None:
            self.log_view.read_anew()

    def on_feed_failed(self, event: FeedFailed) -> None:
        """Show the error; the screen keeps its content."""
        self.app.notify(str(event.error), severity="error", timeout=15)
        if self.snapshot is None:
            self.header.show(self.run_id, state="failed")

    def fetch_earlier(self, wanted: Sequence[Older]) -> None:
        """Fetch the lines over links separate from those that follow the run."""
        if self._feed:
            self._feed.earlier(wanted)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to stop only a run that is followed and has not ended."""
        if action == "stop" and (self.over or (self.snapshot is not None and self.snapshot.ended)):
            return False
        return super().check_action(action, parameters)

    def _tick(self) -> None:
        snapshot = self.snapshot
        if snapshot is not None and snapshot.state.result is None:
            self.snapshot = replace(snapshot, now=self._feed.now() if self._feed else time.time())
            self.show(self.snapshot)

    def commands(self) -> Iterator[Command]:
        count = self.snapshot.state.world_size if self.snapshot else 0
        for rank in range(min(count, 256)):
            yield Command(f"Rank {rank}", "Its log and its line in the charts", partial(self.choose_rank, rank))

    def on_hosts_pane_top_wanted(self, event: HostsPane.TopWanted) -> None:
        """Show the host's load; the hosts of a sandbox are this machine."""
        if self.known is not None:
            self.disttui.router.open_load(["local" if self.known.sandbox else self.known.hosts[event.node].name])

    @work(group="ask", exclusive=True)
    async def action_stop(self) -> None:
        """Ask, then stop the run; kill it the second time."""
        snapshot, feed = self.snapshot, self._feed
        if snapshot is None or feed is None or self.disttui.read_only:
            return
        count, hosts = snapshot.state.world_size, len(snapshot.state.hosts)
        if self._stops == 0:
            question = f"Stop {short(snapshot.state.run)}?"
            will = (
                f"{amount(count, 'rank')} on {amount(hosts, 'host')} get SIGTERM and time to save a checkpoint; "
                "what still runs then is killed. Logs, metrics and checkpoints are kept."
            )
        else:
            question = f"Kill {short(snapshot.state.run)} now?"
            will = "Kills every process of the run immediately, without saving."
        if await self.disttui.ask(question, will, "kill" if self._stops else "stop"):
            feed.stop()
            self._stops += 1
            words = "killing" if self._stops > 1 else "stopping; press s again to kill now"
            if self.snapshot and all(host.link != "seen" for host in self.snapshot.state.hosts):
                words += "; no host is reachable: it is sent later, while this screen is open"
            self.app.notify(words)

    def leaving(self) -> None:
        """Report that the run continues."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.state.result is not None:
            return
        run, word = short(snapshot.state.run), run_word(snapshot.state)
        if self._stops and all(host.link != "seen" for host in snapshot.state.hosts):
            said = f"no host is reachable: the stop of {run} may not have been sent. Again: disttui stop {run}"
            self.app.notify(said, severity="warning")
        elif word not in ("not seen", "lost"):
            lasting = " until its sandbox ends" if self.known and self.known.sandbox else ""
            goes_on = "stays queued" if word == "queued" else "keeps running"
            self.app.notify(f"{run} {goes_on}{lasting}. To return: disttui attach {run}")
