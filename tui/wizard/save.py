"""The dialog that asks where to save."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from runner.profile.library import EXAMPLES, libraries
from runner.text import clean, clean_lines
from tui.keys import bind
from tui.screen import DisttuiModal
from tui.widgets.cycle import Cycle
from tui.widgets.hints import LEAVE, Hints, Key
from tui.wizard.draft import Draft


class SaveScreen(DisttuiModal[Path | None]):
    """Offers the library's folders, the current folder, and any path; closes after the profile is saved.

    Args:
        save: Saves to a path and returns the error, empty for none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("save.cancel", "escape", "cancel", "cancel"),
        bind("save.other", "tab,down,up", "app.focus_next", "next", show=False),
        bind("save.save", "enter", "save", "save"),
    ]
    AUTO_FOCUS = "#path"
    DEFAULT_CSS = """
    SaveScreen Input { margin: 1 0 0 0; }
    SaveScreen Cycle { margin: 1 0 0 0; }
    SaveScreen #flaw { color: $state-failed; display: none; }
    SaveScreen #flaw.-on { display: block; }
    """

    def __init__(self, draft: Draft, save: Callable[[Path], Awaitable[str]]) -> None:
        super().__init__()
        self._save = save
        self._places = places(draft)

    def compose(self) -> ComposeResult:
        """Yield the places and the input for the path."""
        with VerticalScroll(classes="box wide", can_focus=False):
            yield Static(Content.styled("Save the profile", "bold"))
            yield Cycle(list(self._places), id="place")
            yield Input(id="path", select_on_focus=False)
            yield Static(id="flaw")
            yield Hints(Key("enter", "enter", "save"), Key("tab", "tab", "choose a place"), LEAVE)

    def on_mount(self) -> None:
        """Offer the likeliest place."""
        self._fill(self.query_one(Cycle).value)

    @on(Cycle.Changed)
    def _placed(self, event: Cycle.Changed) -> None:
        self._fill(event.value)

    def _fill(self, place: str) -> None:
        path, line = str(self._places[place]), self.query_one(Input)
        line.value = path
        line.cursor_position = len(path)
        # A path that is too long for the line shows its end; that needs the line's width.
        self.call_after_refresh(line.scroll_to, len(path), animate=False)

    @on(Input.Changed)
    def _typed(self) -> None:
        self._tell("")

    def _tell(self, flaw: str) -> None:
        self.query_one("#flaw", Static).update(Content(f"✗ {clean_lines(flaw)}" if flaw else ""))
        self.query_one("#flaw").set_class(bool(flaw), "-on")

    @on(Input.Submitted)
    @work(group="save", exclusive=True)
    async def action_save(self) -> None:
        """Save to the path, or show the error below it."""
        text = self.query_one(Input).value.strip()
        try:
            path = Path(text).expanduser()
        except RuntimeError:
            self._tell(f"there is no user {text.partition('/')[0].removeprefix('~')}")
            return
        flaw = await self._save(path) if text else "type the path of a file"
        if flaw:
            self._tell(flaw.removeprefix(f"{path}: "))  # which stands in the line above
        else:
            self.dismiss(path)

    def action_cancel(self) -> None:
        """Do not save."""
        self.dismiss(None)


def places(draft: Draft) -> Mapping[str, Path]:
    """Name of a place → path for saving the profile; the likeliest first."""
    file = f"{clean(str(draft.data.get('name') or 'run'))}.yaml".replace("/", "-")
    known = {library.name: library.folder for library in libraries()}
    shipped = known.pop(EXAMPLES)
    found: dict[str, Path] = {}
    if draft.path and draft.path.parent != shipped:
        found["the same file"] = draft.path
    for name, folder in (*known.items(), ("here", Path.cwd())):
        # Not `inside`: a user who keeps a profile elsewhere, behind a link of their own, wants it saved there.
        found[name] = folder / file  # type: ignore[unsafe-path]
    return found
