"""What a screen does for the log that it shows: its place, its clocks, its earlier lines, what it wants of the app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from textual import work
from textual.message import Message

from runner.errors import DisttuiError, InputError
from tui.log import LogSources, LogView, Older
from tui.screen import DisttuiScreen
from tui.terminal.pager import open_pager


class EarlierFetched(Message):
    """What was asked for of the beginnings of logs is in the mirror, as far as `error` has not kept it from it."""

    def __init__(self, error: DisttuiError | None) -> None:
        super().__init__()
        self.error = error


class LogScreen(DisttuiScreen):
    """A screen with a pane `#log` that a run's log is put into."""

    @property
    def log_view(self) -> LogView | None:
        """The run's log, once it is there."""
        return next(iter(self.query(LogView)), None)

    def show_log(self, mirror: Path, names: Sequence[str], offsets: Mapping[int, float]) -> None:
        """Put the run's log in its place."""
        pane = self.query_one("#log")
        pane.border_title = "Log"
        pane.mount(LogView(LogSources(mirror, names, offsets), read_only=self.disttui.read_only))

    def set_clocks(self, offsets: Mapping[int, float]) -> None:
        """Order the lines of all hosts by what is known of their clocks now."""
        view = self.log_view
        if view is not None and view.sources.set_offsets(offsets):
            # Not before it has been mounted.
            view.call_later(view.read_anew)

    def earlier(self, wanted: Sequence[Older]) -> None:
        """Fetch the beginnings of logs into the mirror, in a thread. Raises DisttuiError."""
        raise NotImplementedError

    def on_log_view_older_requested(self, event: LogView.OlderRequested) -> None:
        """Fetch it."""
        self._fetch(event.wanted)

    @work(thread=True, group="earlier", exit_on_error=False)
    def _fetch(self, wanted: Sequence[Older]) -> None:
        problem = None
        try:
            self.earlier(wanted)
        except DisttuiError as error:
            problem = error
        self.post_message(EarlierFetched(problem))

    def on_earlier_fetched(self, event: EarlierFetched) -> None:
        """Show what has come, and say what has not."""
        view = self.log_view
        if view is None:
            return
        if event.error is not None:
            self.app.notify(str(event.error), title="earlier lines are not to be had", severity="warning")
            view.older_refused()
        view.read_anew()

    def on_log_view_yanked(self, event: LogView.Yanked) -> None:
        """Copy it."""
        self.disttui.copy(event.text)

    def on_log_view_pager_requested(self, event: LogView.PagerRequested) -> None:
        """Show the file in the user's pager."""
        try:
            open_pager(self.app, self.disttui.environ, event.path, event.line)
        except InputError as error:
            self.app.notify(str(error), severity="error")
