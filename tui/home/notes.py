"""The dialog for a run's notes: tags, and a line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from runner.errors import InputError
from runner.runs.notes import Notes, notes_of
from runner.text import clean
from tui.keys import bind
from tui.screen import DisttuiModal
from tui.widgets.hints import LEAVE, Hints, Key


class NotesScreen(DisttuiModal[Notes | None]):
    """Asks for tags and a note; starts with those that all the runs share."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("notes.cancel", "escape", "cancel", "cancel"),
        bind("notes.other", "tab,down,up", "app.focus_next", "next", show=False),
        bind("notes.save", "enter", "save", "save"),
    ]
    AUTO_FOCUS = "#tags"
    DEFAULT_CSS = """
    NotesScreen Input { margin: 1 0 0 0; }
    NotesScreen #wrong { color: $state-failed; }
    """

    def __init__(self, title: str, before: Notes) -> None:
        super().__init__()
        self._title = clean(title)
        self._before = before

    def compose(self) -> ComposeResult:
        """Yield the inputs, and the line for errors in them."""
        with VerticalScroll(classes="box wide", can_focus=False):
            yield Static(Content.styled(self._title, "bold"))
            yield Static(Content("Kept on this machine; the filter of the home screen finds both."), classes="quiet")
            tags = " ".join(self._before.tags)
            yield Input(tags, placeholder="tags, such as: baseline lr3e-4", id="tags", select_on_focus=False)
            yield Input(self._before.note, placeholder="a note", id="note", select_on_focus=False)
            yield Static(id="wrong")
            yield Hints(Key("enter", "enter", "keep"), Key("tab", "tab", "the other line"), LEAVE)

    @on(Input.Submitted)
    def action_save(self) -> None:
        """Return the notes, or show what is wrong with them."""
        try:
            self.dismiss(notes_of(self.query_one("#tags", Input).value, self.query_one("#note", Input).value))
        except InputError as error:
            self.query_one("#wrong", Static).update(Content(f"{error.what}. {error.cure or ''}"))

    def action_cancel(self) -> None:
        """Close without a change."""
        self.dismiss(None)


def shared(noted: Sequence[Notes]) -> Notes:
    """The tags and the note that several runs have in common."""
    first = noted[0]
    tags = tuple(tag for tag in first.tags if all(tag in one.tags for one in noted))
    return Notes(tags, first.note if all(one.note == first.note for one in noted) else "")


def changed(one: Notes, before: Notes, after: Notes) -> Notes:
    """The new notes of one of several runs, after their shared notes were edited from `before` to `after`."""
    kept = tuple(tag for tag in one.tags if tag not in before.tags or tag in after.tags)
    added = tuple(tag for tag in after.tags if tag not in kept)
    return Notes(kept + added, one.note if after.note == before.note else after.note)
