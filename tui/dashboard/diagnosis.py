"""What every rank of a run is doing now, or why the run has failed: a text over the dashboard."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.widgets import Static

from runner.api.diagnosing import diagnose
from runner.errors import DisttuiError
from runner.render.diagnosis import diagnosis_text, told_before
from runner.runs.registry import KnownRun
from runner.text import clean_lines
from tui.keys import bind
from tui.screen import DisttuiModal
from tui.widgets.hints import Hints, Key
from tui.widgets.wrap import wrapped


class DiagnosisText(Static):
    """Text that wraps paths between their folders only."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def show(self, text: str) -> None:
        """Replace the text; it must be clean."""
        self._text = text
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Number of lines at this width."""
        return len(self._rows(width))

    def render(self) -> Content:
        """The text, wrapped to the present width."""
        return Content("\n".join(self._rows(self.content_size.width)))

    def _rows(self, width: int) -> list[str]:
        return wrapped(self._text.split("\n"), max(10, width))


class DiagnosisScreen(DisttuiModal[None]):
    """Asks the hosts in a thread; shows a notice until they answer."""

    class Answered(Message):
        """The hosts have answered, or could not be asked."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("diagnosis.close", "escape,q,d", "close", "close", "back to the run"),
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
        """Yield the text, which its keys scroll."""
        with VerticalScroll(classes="box wide"):
            yield DiagnosisText("asking the hosts …")
        yield Hints(Key("y", "y", "copy"), Key("escape", "esc", "close"), classes="hint")

    def on_mount(self) -> None:
        """Ask."""
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
        self.post_message(self.Answered(text))

    def on_diagnosis_screen_answered(self, event: Answered) -> None:
        """Show the answer."""
        self._text = clean_lines(event.text)
        self.query_one(DiagnosisText).show(self._text)

    def action_copy(self) -> None:
        """Copy the text."""
        if self._text:
            self.disttui.copy(self._text)

    def action_close(self) -> None:
        """Return to the run."""
        self.dismiss(None)
