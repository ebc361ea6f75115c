"""The screen of a profile with errors: its text, with every error below its line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget

from disttui.runner.errors import InputError
from disttui.runner.formatting import amount
from disttui.runner.text import clean
from disttui.tui.keys import CHANGE, MOVE, VIEW, bind
from disttui.tui.screen import DisttuiScreen
from disttui.tui.terminal import open_editor
from disttui.tui.widgets.points import Pages, Point

_MOST = 256 * 1024
"""Maximum number of bytes of a file that are shown."""


class ProfileErrorScreen(DisttuiScreen):
    """Shows the errors of a profile, and opens it at an error in the user's editor.

    Args:
        path: The file.
        error: The error that `disttui.runner.profile.load` raised.
        launch: As for `Router.open_wizard`, which opens the file once it is valid.
    """

    HELP = "This profile has errors. Each is shown below its line; once they are fixed, the profile opens."
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("error.edit", "e,enter", "edit", "edit", "open it in $EDITOR at the error, then check it", group=CHANGE),
        bind("error.check", "r", "check", "check", "check the file again", group=VIEW),
        bind("error.next", "n", "next(1)", "next", "next error", group=MOVE),
        bind("error.before", "N", "next(-1)", "before", "previous error", group=MOVE, show=False),
    ]
    DEFAULT_CSS = "ProfileErrorScreen Pages { padding: 0 1; }"

    def __init__(self, path: Path, error: InputError, launch: bool = False) -> None:
        super().__init__()
        self._path = path
        self._error = error
        self._launch = launch
        self._at = 0
        self._text = Pages()
        self._wrong: list[tuple[int, Path, int]] = []
        """The index of each error's point, and the file and line that it is about."""

    def body(self) -> Iterable[Widget]:
        self._text.add_class("pane")
        self._text.border_title = Content(f" {clean(self._path.name)} ")
        yield self._text

    def on_mount(self) -> None:
        self._show_errors()

    def _show_errors(self) -> None:
        problems = getattr(self._error, "problems", ())
        number = len(problems) or 1
        self.header.show(str(self._path.name), [amount(number, "error")], state="error")
        self._text.show(self._marked(problems))
        self._text.focus()
        self.call_after_refresh(self._show)

    def _marked(self, problems: Iterable[Any]) -> Iterator[Point]:
        """Yield the file's lines with numbers, each error below its line; errors of other places come first."""
        try:
            lines = self._path.read_bytes()[:_MOST].decode("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        under: dict[int, list[Any]] = {}
        for problem in problems:
            here = problem.source == str(self._path) and problem.line <= len(lines)
            under.setdefault(problem.line if here else 0, []).append(problem)
        self._wrong = []
        at = 0
        if not under:
            yield from (Point(str(self._error), "$state-failed", "✗ "), Point(""))
        for number, line in enumerate(["", *lines]):
            wrong = under.get(number, ())
            if number:
                yield Point(line, "bold" if wrong else "", f"{number:>4}  ", "$muted")
                at += 1
            for problem in wrong:
                self._wrong.append((at, Path(problem.source), problem.line))
                text, column = (problem.reason, max(1, problem.column)) if number else (str(problem), 1)
                yield Point(text, "$state-failed", " " * (5 + column) + "✗ ")
                at += 1

    def _show(self) -> None:
        if self._wrong:
            self._text.scroll_to_point(self._wrong[self._at][0])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the next error only if there are several."""
        return (action != "next" or len(self._wrong) > 1) and super().check_action(action, parameters)

    def action_next(self, by: int) -> None:
        if self._wrong:
            self._at = (self._at + by) % len(self._wrong)
            self._show()

    def action_edit(self) -> None:
        """Open the file in the user's editor, then check it."""
        path, line = self._wrong[self._at][1:] if self._wrong else (self._path, 0)
        try:
            open_editor(self.app, self.disttui.environ, path if path.is_file() else self._path, line)
        except InputError as error:
            self.disttui.notify(str(error), severity="error")
            return
        self.action_check()

    @work(thread=True, exclusive=True, group="check")
    def action_check(self) -> None:
        """Load the file; open the wizard if it is valid, or else show the remaining errors."""
        from disttui.runner.profile.load import load

        try:
            load(self._path)
        except InputError as error:
            self.app.call_from_thread(self._still, error)
        else:
            self.app.call_from_thread(self._good)

    def _still(self, error: InputError) -> None:
        if self.is_attached:
            self._error, self._at = error, 0
            self._show_errors()

    def _good(self) -> None:
        self.disttui.notify(f"{self._path.name} is valid now")
        if self.app.screen is not self:
            return  # closed, or below another screen: the user checks again after coming back
        self.dismiss()
        self.disttui.router.open_wizard(self._path, launch=self._launch)
