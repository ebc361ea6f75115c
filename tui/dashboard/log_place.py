"""The pane of a run's log: opens the log, updates its clocks, fetches earlier lines, copies, opens the pager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual import work
from textual.containers import Vertical
from textual.message import Message

from runner.errors import DisttuiError, InputError
from tui.log import LogSources, LogView, Older
from tui.terminal.pager import open_pager

if TYPE_CHECKING:
    from tui.shell import Shell


class EarlierFetched(Message):
    """The requested beginnings of logs are in the mirror, except those that failed with `error`."""

    def __init__(self, error: DisttuiError | None) -> None:
        super().__init__()
        self.error = error


class LogPlace(Vertical):
    """The pane for a run's log, which is added when it exists.

    Args:
        fetch: Fetches beginnings of logs into the mirror; called in a thread. Raises DisttuiError.
    """

    def __init__(self, fetch: Callable[[Sequence[Older]], None], *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self._fetch = fetch

    @property
    def view(self) -> LogView | None:
        """The log; None before it is opened."""
        return next(iter(self.query(LogView)), None)

    @property
    def _shell(self) -> Shell:
        return cast("Shell", self.app)

    def open(self, mirror: Path, names: Sequence[str], offsets: Mapping[int, float]) -> None:
        """Show the log of a mirror in this pane."""
        self.border_title = "Log"
        self.mount(LogView(LogSources(mirror, names, offsets), read_only=self._shell.read_only))

    def set_clocks(self, offsets: Mapping[int, float]) -> None:
        """Sort the lines of all hosts by the present clock offsets (s)."""
        view = self.view
        if view is not None and view.sources.set_offsets(offsets):
            # Not before it is mounted.
            view.call_later(view.read_anew)

    def on_log_view_older_requested(self, event: LogView.OlderRequested) -> None:
        """Fetch the lines."""
        self._fetch_older(event.wanted)

    @work(thread=True, group="earlier", exit_on_error=False)
    def _fetch_older(self, wanted: Sequence[Older]) -> None:
        problem = None
        try:
            self._fetch(wanted)
        except DisttuiError as error:
            problem = error
        self.post_message(EarlierFetched(problem))

    def on_earlier_fetched(self, event: EarlierFetched) -> None:
        """Show the new lines, and say which are missing."""
        view = self.view
        if view is None:
            return
        if event.error is not None:
            self.app.notify(str(event.error), title="earlier lines cannot be fetched", severity="warning")
            view.older_refused()
        view.read_anew()

    def on_log_view_yanked(self, event: LogView.Yanked) -> None:
        """Copy the lines."""
        self._shell.copy(event.text)

    def on_log_view_pager_requested(self, event: LogView.PagerRequested) -> None:
        """Show the file in the user's pager."""
        try:
            open_pager(self.app, self._shell.environ, event.path, event.line)
        except InputError as error:
            self.app.notify(str(error), severity="error")
