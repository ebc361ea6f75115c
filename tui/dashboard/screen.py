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

from runner.errors import DisttuiError
from runner.ids import short
from runner.render.status import run_word
from runner.runs.hooks import tell_later
from runner.runs.registry import KnownRun
from runner.runs.state import RunState
from runner.user.notices import Notices
from tui.dashboard.hosts import HostsPane
from tui.dashboard.run_screen import RunScreen
from tui.keys import CHANGE, PANE_KEYS, VIEW, bind
from tui.log import Older
from tui.run.attach import attached
from tui.run.feed import FeedFailed, LiveFeed, RunChanged, Snapshot
from tui.screen import Command


class RunFound(Message):
    """The run was found, and is being followed."""

    def __init__(self, known: KnownRun, feed: LiveFeed, mirror: Path) -> None:
        super().__init__()
        self.known = known
        self.feed = feed
        self.mirror = mirror


class DashboardScreen(RunScreen):
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
        bind("dash.edit", "e,v", "edit_failure", "edit line", "open $EDITOR at the line that failed", group=VIEW),
        *PANE_KEYS,
    ]

    def __init__(self, run_id: str) -> None:
        super().__init__(self._fetch_earlier)
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
        """Follow the run."""
        self.header.show(self.run_id, state="connecting")
        self.set_interval(1.0, self._tick)
        # Not earlier: a screen gets no unmount event if the app ends while the screen is being opened.
        self.call_later(self._follow)

    def on_unmount(self) -> None:
        """Stop following; the run continues."""
        self._left.set()
        if self._notices is not None:
            self._notices.close()

    @work(thread=True, group="end", exit_on_error=False, description="end")
    def _tell_end(self, state: RunState) -> None:
        """Run the profile's command for the end of a run; the user may leave the screen meanwhile."""
        if self.known:
            tell_later(self.known, state, self.app.notify)

    @work(thread=True, group="feed", exit_on_error=False)
    def _follow(self) -> None:
        try:
            with attached(self.disttui, self.run_id) as following:
                feed = LiveFeed(self, following)
                self.post_message(RunFound(following.run, feed, following.mirror))
                feed.start()
                self._left.wait()
                feed.close()
                feed.wait(1.0)
        except DisttuiError as error:
            self.post_message(FeedFailed(error))

    def on_run_found(self, event: RunFound) -> None:
        """Open its log from the mirror."""
        self.known, self._feed = event.known, event.feed
        self.run_id = event.known.run
        self.show_log(event.mirror, [host.name for host in event.known.hosts], {})

    def on_run_changed(self, event: RunChanged) -> None:
        """Show it."""
        self.show(event.snapshot)
        if self.over and self._stops:
            # What was said of the stop is no longer so.
            self._stops = 0
            self.app.clear_notifications()
        self._tell_terminal(event.snapshot)
        if event.snapshot.ended and event.snapshot.state.result is not None and not self.disttui.read_only:
            self._tell_end(event.snapshot.state)

    def _tell_terminal(self, snapshot: Snapshot) -> None:
        if self._notices is None:
            self._notices = Notices(self.disttui.send, self.disttui.settings, self.disttui.environ)
        self._notices.tell(short(snapshot.state.run), run_word(snapshot.state), over=snapshot.state.result is not None)

    def on_feed_failed(self, event: FeedFailed) -> None:
        """Show the error; the screen keeps its content."""
        self.app.notify(str(event.error), severity="error", timeout=15)
        if self.snapshot is None:
            self.header.show(self.run_id, state="failed")

    def _fetch_earlier(self, wanted: Sequence[Older]) -> None:
        """Fetch over separate links, beside those that follow the run."""
        if self._feed:
            self._feed.earlier(wanted)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to stop only a run that has not ended."""
        if action == "stop" and self.over:
            return False
        return super().check_action(action, parameters)

    def _tick(self) -> None:
        snapshot = self.snapshot
        if snapshot is not None and snapshot.state.result is None:
            self.snapshot = replace(snapshot, now=self._feed.now() if self._feed else time.time())
            self.show(self.snapshot)

    def commands(self) -> Iterator[Command]:
        """Ranks for the palette."""
        count = self.snapshot.state.world_size if self.snapshot else 0
        for rank in range(min(count, 256)):
            yield Command(f"Rank {rank}", "Its log and its line in the charts", partial(self.choose_rank, rank))

    def on_hosts_pane_top_wanted(self, event: HostsPane.TopWanted) -> None:
        """Show what the host does now; the hosts of a sandbox are this machine."""
        if self.known is not None:
            self.disttui.router.open_top(["local" if self.known.sandbox else self.known.hosts[event.node].name])

    @work(group="ask", exclusive=True)
    async def action_stop(self) -> None:
        """Stop, after a question that says what will happen; a second time, kill."""
        snapshot, feed = self.snapshot, self._feed
        if snapshot is None or feed is None or self.disttui.read_only:
            return
        count, hosts = snapshot.state.world_size, len(snapshot.state.hosts)
        if self._stops == 0:
            question = f"Stop {short(snapshot.state.run)}?"
            where = f"{hosts} host{'s' if hosts > 1 else ''}"
            will = (
                f"{count} rank{'s' if count > 1 else ''} on {where} get SIGTERM and time to save a checkpoint; "
                "what is left after that is killed. Logs, metrics and checkpoints stay."
            )
        else:
            question = f"Kill {short(snapshot.state.run)} now?"
            will = "Every process of the run is killed at once; nothing more is saved."
        if await self.disttui.ask(question, will, "kill" if self._stops else "stop"):
            feed.stop()
            self._stops += 1
            words = "killing" if self._stops > 1 else "stopping; s again kills at once"
            if self.snapshot and all(host.link != "seen" for host in self.snapshot.state.hosts):
                words += "; no host is reached now: it goes out once one is"
            self.app.notify(words)

    @work(group="diagnose", exclusive=True)
    async def action_diagnose(self) -> None:
        """Ask every rank for its stack, and show the diagnosis."""
        from tui.dashboard.diagnosis import DiagnosisScreen

        if self.known is not None and self.snapshot is not None:
            await self.app.push_screen(DiagnosisScreen(self.known))

    def leaving(self) -> None:
        """Say that the run continues."""
        snapshot = self.snapshot
        if snapshot is not None and snapshot.state.result is None and run_word(snapshot.state) != "not seen":
            self.app.notify(
                f"{short(snapshot.state.run)} goes on; disttui attach {short(snapshot.state.run)} shows it again"
            )
