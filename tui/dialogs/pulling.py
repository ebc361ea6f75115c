"""The dialog that copies the checkpoints and results of a run to this machine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.notifications import SeverityLevel
from textual.widgets import Input, Static

from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import amount, gibibytes
from disttui.runner.ids import short
from disttui.runner.paths import here, typed
from disttui.runner.text import clean_lines
from disttui.tui.keys import bind
from disttui.tui.screen import DisttuiModal
from disttui.tui.widgets.bars import LEAVE, Hints, Key

_BAR = 32
"""Cells of the progress bar."""


class PullScreen(DisttuiModal[None]):
    """Asks for a folder, then copies the files and shows the progress; closing the dialog does not stop copying."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("pull.close", "escape", "close", "close", "close; copying continues"),
        bind("pull.start", "enter", "start", "start"),
    ]
    DEFAULT_CSS = """
    PullScreen Input { margin: 1 0 0 0; }
    PullScreen #state { margin: 1 0 0 0; }
    """

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run
        self._began = self._done = False
        self._files = self._bytes = self._came = 0

    def compose(self) -> ComposeResult:
        """Yield the folder, the state and the keys."""
        with VerticalScroll(classes="box wide", can_focus=False):
            yield Static(Content.styled(f"Copy the checkpoints and results of {short(self._run)}", "bold"))
            yield Input(f"{here()}/{self._run}", select_on_focus=False)
            yield Static(id="state")
            yield Hints(Key("enter", "enter", "copy"), LEAVE)

    @on(Input.Submitted)
    def action_start(self) -> None:
        """Start copying; close the dialog if copying is done."""
        if self._done:
            self.dismiss()
        elif not self._began:
            line = self.query_one(Input)
            try:
                to = typed(line.value.strip() or ".")
            except InputError as error:
                self._tell(f"✗ {error.sentence}")
                return
            self._began = line.disabled = True
            self._tell("asking the hosts for its files")
            self.set_interval(0.5, self._show)
            # Not a worker, because closing the screen would wait for it.
            threading.Thread(target=self._pull, args=(to,), name="pull", daemon=True).start()

    def action_close(self) -> None:
        """Close the dialog; copying continues."""
        if self._began and not self._done:
            self.notify(f"copying {short(self._run)} continues")
        self.dismiss()

    def _tell(self, words: str) -> None:
        if self.is_attached:
            self.query_one("#state", Static).update(Content(clean_lines(words)))

    def _show(self) -> None:
        """Show the progress bar, and how many of all bytes have arrived."""
        if self._bytes and not self._done:
            share = min(1.0, self._came / self._bytes)
            bar = "━" * round(share * _BAR)
            come = f"{gibibytes(self._came)} of {gibibytes(self._bytes)}, {amount(self._files, 'file')}"
            words = (bar, "$state-running"), ("─" * (_BAR - len(bar)), "$rule"), f" {100 * share:.0f} %  {come}"
            self.query_one("#state", Static).update(Content.assemble(*words))

    def _pull(self, to: Path) -> None:
        from disttui.runner.api.finding import find_run
        from disttui.runner.api.pulling import PullNews, ToFetch, pull
        from disttui.runner.api.questions import HostNotice

        app = self.disttui

        def tell(news: PullNews) -> None:
            if isinstance(news, HostNotice):
                app.notify(f"{news.host}: {news.text}", severity="warning")
            elif isinstance(news, ToFetch):
                self._files += news.files
                self._bytes += news.size

        def came(count: int) -> None:
            self._came += count

        try:
            viewer = app.viewer()
            pulled = pull(viewer, find_run(viewer, self._run), to, tell, came=came)
        except (DisttuiError, RuntimeError) as error:
            self._end(f"✗ {error}", "error")
            return
        if not pulled.offered:
            self._end(f"{short(self._run)} has no files to copy on its hosts", "warning")
        elif not pulled.fetched:
            self._end(f"everything is already here: {to}", "information")
        else:
            self._end(
                f"✓ {amount(len(pulled.fetched), 'file')}, {gibibytes(pulled.bytes)} copied to {to}", "information"
            )

    def _end(self, words: str, severity: SeverityLevel) -> None:
        self._done = True
        if self.is_attached:
            self.call_later(self._tell, words)
        else:
            self.disttui.notify(words, severity=severity, timeout=15)
