"""Actions on runs and profiles beyond opening them: edit, annotate, stop, delete, sync, clean up."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import amount, duration
from disttui.runner.ids import short
from disttui.runner.runs.notes import Notes, notes_of
from disttui.runner.text import clean
from disttui.tui.home import rows
from disttui.tui.inventory import ProfileRow, RunRow
from disttui.tui.keys import bind
from disttui.tui.screen import DisttuiModal, DisttuiScreen
from disttui.tui.terminal import open_editor
from disttui.tui.widgets.bars import LEAVE, Hints, Key


class NotesScreen(DisttuiModal[Notes | None]):
    """Asks for tags and a note; starts with those that all the runs share."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("notes.cancel", "escape", "dismiss", "cancel"),
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
        """Yield the inputs, and a line for errors in them."""
        with VerticalScroll(classes="box wide", can_focus=False):
            yield Static(Content.styled(self._title, "bold"))
            yield Static(
                Content("Stored on this machine; the filter on the home screen searches both."), classes="quiet"
            )
            tags = " ".join(self._before.tags)
            yield Input(tags, placeholder="tags, for example: baseline lr3e-4", id="tags", select_on_focus=False)
            yield Input(self._before.note, placeholder="a note", id="note", select_on_focus=False)
            yield Static(id="wrong")
            yield Hints(Key("enter", "enter", "save"), Key("tab", "tab", "next field"), LEAVE)

    @on(Input.Submitted)
    def action_save(self) -> None:
        """Close with the notes, or show what is wrong with them."""
        try:
            self.dismiss(notes_of(self.query_one("#tags", Input).value, self.query_one("#note", Input).value))
        except InputError as error:
            self.query_one("#wrong", Static).update(Content(f"{error.what}. {error.cure or ''}"))


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


AGES = (("7d", "more than a week ago"), ("30d", "more than 30 days ago"), ("90d", "more than 90 days ago"))
"""Ages of ended runs that can be cleaned up, as `disttui runs gc --older` accepts them."""


class ManagingScreen(DisttuiScreen):
    """The actions of the home screen that change runs and profiles; most ask the user first and report the result."""

    @property
    @abstractmethod
    def chosen(self) -> Sequence[RunRow]:
        """The runs to act on."""

    @property
    @abstractmethod
    def chosen_profile(self) -> ProfileRow | None:
        """The profile to act on."""

    @abstractmethod
    def read(self, anew: bool = False) -> object:
        """Show what has changed, or all of it again."""

    def action_edit(self) -> None:
        """Open the profile in the user's editor; afterwards show its errors below their lines."""
        if self.chosen_profile is None:
            return
        try:
            open_editor(self.app, self.disttui.environ, self.chosen_profile.path)
        except InputError as error:
            self.notify(str(error), severity="error")
        else:
            self._check(self.chosen_profile.path)

    @work(thread=True, group="check", exclusive=True)
    def _check(self, path: Path) -> None:
        from disttui.runner.profile.load import load

        app = self.disttui
        try:
            load(path)
        except InputError:
            self.app.call_from_thread(app.router.open_wizard, path)  # which shows the errors first
        else:
            app.notify(f"{path.name} is valid")
        self.app.call_from_thread(self.read, True)

    @work(group="ask")
    async def action_notes(self) -> None:
        """Ask for tags and a note, and save them."""
        from disttui.runner.runs.notes import Notes, write_notes

        if not (chosen := self.chosen):
            return
        noted = [Notes(row.tags, row.note) for row in chosen]
        title = f"Tags and a note for {_named(chosen)}"
        before = shared(noted)
        after = await self.app.push_screen_wait(NotesScreen(title, before))
        if after is None:
            return
        try:
            for row, one in zip(chosen, noted, strict=True):
                await asyncio.to_thread(write_notes, row.folder, changed(one, before, after))
        except InputError as error:
            self.disttui.notify(str(error), severity="error")
        self.read(True)

    @work(group="ask")
    async def action_stop(self) -> None:
        """Ask, then stop the chosen runs on all their hosts."""
        chosen = [row for row in self.chosen if not row.over]
        consequence = "\n".join(map(rows.stop_consequence, chosen))
        if chosen and await self.disttui.ask(f"Stop {_named(chosen)}?", consequence, "stop"):
            for row in chosen:
                self._stop(row.run)

    @work(thread=True, group="stop", exit_on_error=False)
    def _stop(self, run_id: str) -> None:
        """Stop a run and complete its mirror."""
        from disttui.runner.api.ending import StopAsked, catch_up, stop
        from disttui.runner.api.finding import find_run
        from disttui.runner.api.questions import HostNotice
        from disttui.runner.render.stopping import stopped_lines

        app, began = self.disttui, monotonic()

        def tell(news: HostNotice | StopAsked) -> None:
            if isinstance(news, HostNotice):
                app.notify(f"{news.host}: {news.text}")

        try:
            viewer = app.viewer()
            run = find_run(viewer, run_id)
            stopped = stop(viewer, run, tell=tell)
            for line in stopped_lines(stopped):
                app.notify(line, severity="information" if stopped.complete else "warning")
        except DisttuiError as error:
            app.notify(str(error), title=f"{short(run_id)} was not stopped", severity="error", timeout=15)
        else:
            if stopped.complete and not stopped.before:
                app.notify(f"{short(run_id)} stopped after {duration(monotonic() - began)}")
            with suppress(DisttuiError):  # what the hosts still have can be fetched later
                catch_up(viewer, run)
        self.app.call_from_thread(self.read, True)

    @work(group="ask")
    async def action_delete(self) -> None:
        """Ask, then delete the chosen runs on their hosts and here."""
        chosen, home = self.chosen, self.disttui.environ.get("HOME", "")
        if not chosen or not all(row.may_go for row in chosen):
            return
        if await self.disttui.ask(f"Delete {_named(chosen)}?", rows.delete_consequence(chosen, home), "delete"):
            self._delete(chosen)

    @work(thread=True, group="delete", exit_on_error=False)
    def _delete(self, chosen: Sequence[RunRow]) -> None:
        """Delete runs one after another; report which were deleted, and why others were not."""
        from disttui.runner.api.ending import forget
        from disttui.runner.api.finding import find_run

        app, done = self.disttui, []
        viewer = app.viewer()
        for row in chosen:
            try:
                forget(viewer, find_run(viewer, row.run))
                done.append(row)
            except DisttuiError as error:
                app.notify(str(error), title=f"{short(row.run)} was not deleted", severity="error", timeout=15)
        if done:
            app.notify(f"{_named(done)} deleted")
        with suppress(RuntimeError):  # the app has ended
            self.app.call_from_thread(self.read, True)

    @work(thread=True, group="sync", exclusive=True, exit_on_error=False)
    def action_sync(self) -> None:
        """Sync all libraries that have a git repository, and report each result."""
        from disttui.runner.api.libraries import sync_libraries
        from disttui.runner.render.library import synced_lines

        app = self.disttui
        app.notify(f"syncing {', '.join(app.inventory.remotes)}")
        for name in app.inventory.remotes:
            try:
                for library, done in sync_libraries(app.environ, name):
                    words = "\n".join(synced_lines(library.name, done))
                    app.notify(words, severity="warning" if done.left or done.kept else "information", timeout=12)
            except (DisttuiError, OSError) as error:
                app.notify(str(error), title=f"cannot sync {name}", severity="error", timeout=15)
        with suppress(RuntimeError):  # the app has ended
            self.app.call_from_thread(self.read, True)

    @work(group="ask")
    async def action_clean_up(self) -> None:
        """Ask for an age, list older runs on the hosts, and delete them once confirmed."""
        from disttui.runner.api.ending import old_runs, remove
        from disttui.runner.profile.fields import span as seconds
        from disttui.runner.render.stopping import forgotten, old_table
        from disttui.tui.dialogs.prompts import PickScreen

        app = self.disttui
        age = await self.app.push_screen_wait(PickScreen("Delete runs that ended", AGES, "30d"))
        if age is None:
            return
        app.notify("looking for old runs on the hosts")
        found, problems = await asyncio.to_thread(lambda: old_runs(app.viewer(), older=seconds(age)))
        for problem in problems[:3]:
            app.notify(problem, severity="warning")
        if not found:
            app.notify("nothing to remove")
            return
        will = f"{old_table(found)}\nDeletes logs, metrics and checkpoints, there and here. This cannot be undone."
        if await app.ask(f"Delete {amount(len(found), 'run')}?", will, "delete", unrequested=True):
            removed = await asyncio.to_thread(lambda: list(remove(app.viewer(), found)))
            said = [
                forgotten(run) if error is None else f"{short(run.run)}: {error.sentence}" for run, error in removed
            ]
            failed = any(error for _, error in removed)
            app.notify("\n".join(said[-5:]), severity="warning" if failed else "information")
            self.read(True)


def _named(chosen: Sequence[RunRow]) -> str:
    return short(chosen[0].run) if len(chosen) == 1 else amount(len(chosen), "run")
