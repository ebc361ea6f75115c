"""Instead of the steps: the text of a profile that has errors, at the line of the first."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import TextArea

from runner.errors import InputError
from runner.profile import ProfileErrors, parse
from runner.profile.problems import ProfileProblem, printable
from runner.profile.save import save
from runner.text import clean
from tui.keys import CHANGE, MOVE, bind
from tui.screens.wizard.step import Line, Notes, Step


class MendStep(Step):
    """Edits a file until it is a profile."""

    TITLE = "Mend"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("mend.save", "ctrl+s", "save", "save", "save the file, and go on with it", group=CHANGE, priority=True),
        bind("mend.next", "ctrl+n,f8", "next_problem", "next error", "to the next error", group=MOVE, priority=True),
    ]
    DEFAULT_CSS = """
    MendStep TextArea, MendStep TextArea:focus { height: 1fr; border: none; padding: 0; background: $background; }
    MendStep Notes { max-height: 8; }
    """

    class Mended(Message):
        """The file is a profile now."""

        def __init__(self, path: Path) -> None:
            super().__init__()
            self.path = path

    def __init__(self) -> None:
        super().__init__()
        self._path = Path()
        self._problems: tuple[ProfileProblem, ...] = ()
        self._at = -1

    def compose(self) -> ComposeResult:
        """Text, problems."""
        yield TextArea(show_line_numbers=True, soft_wrap=False, id="text")
        yield Notes()

    def open(self, path: Path) -> None:
        """Show a file. Raises InputError when it cannot be read."""
        self._path = path
        try:
            text = path.read_bytes().decode("utf-8", "replace")
        except OSError as error:
            raise InputError(f"{printable(str(path))}: {error.strerror}") from None
        area = self.query_one(TextArea)
        # Raw control characters are errors of the file: shown without them, they are gone from it once it is saved.
        safe = "\n".join(clean(line).expandtabs(8) if "\t" not in line else clean(line) for line in text.split("\n"))
        area.load_text(safe)
        self._look()
        area.focus()
        self.action_next_problem()

    def action_next_problem(self) -> None:
        """Put the cursor on the next problem."""
        if self._problems:
            self._at = (self._at + 1) % len(self._problems)
            problem = self._problems[self._at]
            area = self.query_one(TextArea)
            area.move_cursor((max(0, problem.line - 1), max(0, problem.column - 1)), center=True)
            self._tell()

    def action_save(self) -> None:
        """Save, and go on where it is a profile."""
        self._look()
        if self._problems:
            self.notify("There are errors left: nothing was saved", severity="warning")
            return
        try:
            save(self.query_one(TextArea).text, self._path, replace=True)
        except InputError as error:
            self.notify(str(error), severity="error")
            return
        self.post_message(self.Mended(self._path))

    @on(TextArea.Changed)
    def _edited(self) -> None:
        self._look()

    def _look(self) -> None:
        before = self._problems
        try:
            parse(self.query_one(TextArea).text, str(self._path))
            self._problems = ()
        except ProfileErrors as error:
            self._problems = error.problems
        if self._problems != before:
            self._at = min(self._at, len(self._problems) - 1)
        self._tell()

    def _tell(self) -> None:
        lines: list[Line] = []
        for number, one in enumerate(self._problems[:20]):
            text = f"line {one.line}: {one.what}" + (f", {one.expected}" if one.expected else "")
            lines.append((f"{'›' if number == self._at else ' '} {text}", "$state-failed"))
        if not lines:
            lines = [("✓ no error left: ctrl+s saves it and goes on", "$state-done")]
        wrong = len(self._problems)
        self.query_one(Notes).tell(f"{self._path.name}: {wrong or 'no'} error{'' if wrong == 1 else 's'}", *lines)
