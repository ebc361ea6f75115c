"""Where a run's log stands: puts it there, keeps its clocks, fetches its earlier lines, copies and pages."""

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
    """What was asked for of the beginnings of logs is in the mirror, as far as `error` has not kept it from it."""

    def __init__(self, error: DisttuiError | None) -> None:
        super().__init__()
        self.error = error


class LogPlace(Vertical):
    """A pane that a run's log is put into, once there is one.

    Args:
        fetch: Brings beginnings of logs into the mirror; called in a thread. Raises DisttuiError.
    """

    def __init__(self, fetch: Callable[[Sequence[Older]], None], *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self._fetch = fetch

    @property
    def view(self) -> LogView | None:
        """The log, once it is there."""
        return next(iter(self.query(LogView)), None)

    @property
    def _shell(self) -> Shell:
        return cast("Shell", self.app)

    def open(self, mirror: Path, names: Sequence[str], offsets: Mapping[int, float]) -> None:
        """Put the log of a mirror here."""
        self.border_title = "Log"
        self.mount(LogView(LogSources(mirror, names, offsets), read_only=self._shell.read_only))

    def set_clocks(self, offsets: Mapping[int, float]) -> None:
        """Order the lines of all hosts by what is known of their clocks now."""
        view = self.view
        if view is not None and view.sources.set_offsets(offsets):
            # Not before it has been mounted.
            view.call_later(view.read_anew)

    def on_log_view_older_requested(self, event: LogView.OlderRequested) -> None:
        """Fetch it."""
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
        """Show what has come, and say what has not."""
        view = self.view
        if view is None:
            return
        if event.error is not None:
            self.app.notify(str(event.error), title="earlier lines are not to be had", severity="warning")
            view.older_refused()
        view.read_anew()

    def on_log_view_yanked(self, event: LogView.Yanked) -> None:
        """Copy it."""
        self._shell.copy(event.text)

    def on_log_view_pager_requested(self, event: LogView.PagerRequested) -> None:
        """Show the file in the user's pager."""
        try:
            open_pager(self.app, self._shell.environ, event.path, event.line)
        except InputError as error:
            self.app.notify(str(error), severity="error")
