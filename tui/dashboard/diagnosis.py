"""The dialog with the state of every rank, or why the run failed."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Static

from disttui.runner.api.diagnosing import diagnose
from disttui.runner.errors import DisttuiError
from disttui.runner.render.diagnosis import diagnosis_text, told_before
from disttui.runner.runs.registry import KnownRun
from disttui.runner.text import clean_lines
from disttui.tui.keys import bind
from disttui.tui.screen import DisttuiModal
from disttui.tui.widgets.bars import Hints, Key
from disttui.tui.widgets.drawn import wrapped


class DiagnosisText(Static):
    """Text that breaks paths only between folders."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def show(self, text: str) -> None:
        """Replace the text; it must be clean."""
        self._text = text
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._rows(width))

    def render(self) -> Content:
        """The text, wrapped to the current width."""
        return Content("\n".join(self._rows(self.content_size.width)))

    def _rows(self, width: int) -> list[str]:
        return wrapped(self._text.split("\n"), max(10, width))


class DiagnosisScreen(DisttuiModal[None]):
    """Shows the diagnosis of a run; queries the hosts in a thread."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("diagnosis.close", "escape,q,d", "dismiss", "close", "back to the run"),
        bind("diagnosis.copy", "y", "copy", "copy", "copy the text"),
    ]
    DEFAULT_CSS = """
    DiagnosisScreen DiagnosisText { height: auto; }
    DiagnosisScreen .box.wide { max-width: 120; }
    """

    def __init__(self, run: KnownRun) -> None:
        super().__init__()
        self._run = run
        self._text = ""

    def compose(self) -> ComposeResult:
        """Yield the text, which can be scrolled, and the keys."""
        with VerticalScroll(classes="box wide"):
            yield DiagnosisText("querying the hosts …")
        yield Hints(Key("y", "y", "copy"), Key("escape", "esc", "close"), classes="hint")

    def on_mount(self) -> None:
        self._ask()

    @work(thread=True, group="diagnose", exit_on_error=False)
    def _ask(self) -> None:
        try:
            with self.disttui.new_viewer() as viewer:
                found = diagnose(viewer, self._run, diagnosis_text)
            text = "\n".join([diagnosis_text(found), *(f"! {warning}" for warning in found.warnings)])
        except DisttuiError as error:
            # Earlier reports of lost hosts are still shown.
            text = "\n".join([str(error), *told_before(self._run.folder)])
        self.call_later(self.show, text)

    def show(self, text: str) -> None:
        """Show the diagnosis, or why the hosts could not be queried."""
        self._text = clean_lines(text)
        self.query_one(DiagnosisText).show(self._text)

    def action_copy(self) -> None:
        if self._text:
            self.disttui.copy(self._text)
