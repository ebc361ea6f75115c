"""The question where to save."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from runner.profile.library import folders
from runner.text import clean
from tui.keys import bind
from tui.screen import DisttuiModal
from tui.widgets.cycle import Cycle
from tui.wizard.draft import Draft


class SaveScreen(DisttuiModal[Path | None]):
    """Offers the library's folders, the folder that disttui was started in, and any path."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("save.cancel", "escape", "cancel", "cancel"),
        bind("save.other", "tab,down,up", "app.focus_next", "next", show=False),
        bind("save.save", "enter", "save", "save"),
    ]
    AUTO_FOCUS = "#path"
    DEFAULT_CSS = """
    SaveScreen Input { margin: 1 0 0 0; }
    SaveScreen Cycle { margin: 1 0 0 0; }
    """

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self._places = places(draft)

    def compose(self) -> ComposeResult:
        """Places, path."""
        with VerticalScroll(classes="box wide", can_focus=False):
            yield Static(Content.styled("Save the profile", "bold"))
            yield Cycle(list(self._places), id="place")
            yield Input(str(next(iter(self._places.values()))), id="path", select_on_focus=False)
            words = (("enter", "bold $accent"), " save   ", ("tab", "bold $accent"), " choose a place   ",
                     ("esc", "bold $accent"), " leave it")  # fmt: skip
            yield Static(Content.assemble(*words), classes="quiet")

    @on(Cycle.Changed)
    def _placed(self, event: Cycle.Changed) -> None:
        self.query_one(Input).value = str(self._places[event.value])

    @on(Input.Submitted)
    def action_save(self) -> None:
        """Take the path."""
        text = self.query_one(Input).value.strip()
        if text:
            self.dismiss(Path(text).expanduser())

    def action_cancel(self) -> None:
        """Do not save."""
        self.dismiss(None)


def places(draft: Draft) -> Mapping[str, Path]:
    """Where a profile may be saved, by what the place is called; the likeliest first."""
    file = f"{clean(str(draft.data.get('name') or 'run'))}.yaml".replace("/", "-")
    known = list(folders())
    shipped = next((folder for origin, folder in known if origin == "built in"), None)
    found: dict[str, Path] = {}
    if draft.path and draft.path.parent != shipped:
        found["the same file"] = draft.path
    for origin, folder in (*known, ("here", Path.cwd())):
        # Not `inside`: a user who keeps a profile elsewhere, behind a link of their own, wants it saved there.
        path = folder / file  # type: ignore[unsafe-path]
        if origin == "team":
            found["team" if "team" not in found else f"team: {clean(folder.name)}"] = path
        elif origin in ("own", "here"):
            found[origin] = path
    return found
