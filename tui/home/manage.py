"""What can be done with runs and profiles beyond opening them: edit, note, delete, clean up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import DisttuiError, InputError
from runner.formatting import amount
from runner.ids import short
from tui.home import rows
from tui.inventory import ProfileRow, RunRow
from tui.screen import DisttuiScreen
from tui.terminal.editor import open_editor

if TYPE_CHECKING:
    from tui.shell import Shell

AGES = (("7d", "more than a week ago"), ("30d", "more than 30 days ago"), ("90d", "more than 90 days ago"))
"""Ages of ended runs that can be cleaned up, as `disttui gc --older` accepts them."""


class Manager:
    """Asks the user, does it, and reports the result.

    Args:
        screen: Its workers do the work, its app asks.
        changed: Called after runs or profiles have changed.
    """

    def __init__(self, screen: DisttuiScreen, changed: Callable[[], object]) -> None:
        self._screen = screen
        self._changed = changed

    @property
    def _shell(self) -> Shell:
        return self._screen.disttui

    def edit(self, profile: ProfileRow) -> None:
        """Open a profile in the user's editor; afterwards show its errors at their lines."""
        try:
            open_editor(self._screen.app, self._shell.environ, profile.path)
        except InputError as error:
            self._shell.notify(str(error), severity="error")
        else:
            self._screen.run_worker(partial(self._check, profile.path), thread=True, group="check", exclusive=True)

    def _check(self, path: Path) -> None:
        from runner.profile import load

        app = self._shell
        try:
            load(path)
        except InputError:
            self._screen.app.call_from_thread(app.router.open_wizard, path)  # which shows the errors first
        else:
            app.notify(f"{path.name} is good")
        self._screen.app.call_from_thread(self._changed)

    async def notes(self, chosen: Sequence[RunRow]) -> None:
        """Ask for tags and a note, and keep them."""
        from runner.runs.notes import Notes, write_notes
        from tui.home.notes import NotesScreen, changed, shared

        noted = [Notes(row.tags, row.note) for row in chosen]
        title = f"Tags and a note for {_named(chosen)}"
        before = shared(noted)
        after = await self._screen.app.push_screen_wait(NotesScreen(title, before))
        if after is None:
            return
        try:
            for row, one in zip(chosen, noted, strict=True):
                await asyncio.to_thread(write_notes, row.folder, changed(one, before, after))
        except InputError as error:
            self._shell.notify(str(error), severity="error")
        self._changed()

    async def delete(self, chosen: Sequence[RunRow]) -> None:
        """Ask, then delete runs on their hosts and here."""
        home = self._shell.environ.get("HOME", "")
        if await self._shell.ask(f"Delete {_named(chosen)}?", rows.delete_consequence(chosen, home), "delete"):
            delete = partial(self._delete, chosen)
            self._screen.run_worker(delete, thread=True, group="delete", exit_on_error=False)

    def _delete(self, chosen: Sequence[RunRow]) -> None:
        """Delete runs one after another; say how many were deleted, and why the others were not."""
        from runner.api.ending import forget
        from runner.api.finding import find_run

        app, done = self._shell, []
        viewer = app.viewer()
        for row in chosen:
            try:
                forget(viewer, find_run(viewer, row.run))
                done.append(row)
            except DisttuiError as error:
                app.notify(str(error), title=f"{short(row.run)} was not deleted", severity="error", timeout=15)
        if done:
            app.notify(f"{_named(done)} deleted")
        with suppress(RuntimeError):  # the app has ended meanwhile
            self._screen.app.call_from_thread(self._changed)

    def sync(self, libraries: Sequence[str]) -> None:
        """Bring libraries together with their repositories, and say what came of each."""
        self._shell.notify(f"syncing {', '.join(libraries)}")
        sync = partial(self._sync, libraries)
        self._screen.run_worker(sync, thread=True, group="sync", exclusive=True, exit_on_error=False)

    def _sync(self, libraries: Sequence[str]) -> None:
        from runner.api.libraries import sync_libraries
        from runner.render.library import synced_lines

        app = self._shell
        for name in libraries:
            try:
                for library, done in sync_libraries(app.environ, name):
                    words = "\n".join(synced_lines(library.name, done))
                    app.notify(words, severity="warning" if done.left or done.kept else "information", timeout=12)
            except (DisttuiError, OSError) as error:
                app.notify(str(error), title=f"{name} is not synced", severity="error", timeout=15)
        with suppress(RuntimeError):  # the app has ended meanwhile
            self._screen.app.call_from_thread(self._changed)

    async def clean_up(self) -> None:
        """Ask for an age, find older runs on the hosts, list them, and delete them after a yes."""
        from runner.api.old import old_runs, remove
        from runner.profile.numbers import age as seconds
        from runner.render.old import forgotten, old_table
        from tui.dialogs.pick import PickScreen

        app = self._shell
        age = await self._screen.app.push_screen_wait(PickScreen("Delete runs that have ended", AGES, "30d"))
        if age is None:
            return
        app.notify("looking on the hosts for what is old")
        found, problems = await asyncio.to_thread(lambda: old_runs(app.viewer(), older=seconds(age)))
        for problem in problems[:3]:
            app.notify(problem, severity="warning")
        if not found:
            app.notify("nothing to remove")
            return
        will = f"{old_table(found)}\nLogs, metrics and checkpoints go, there and here. Nothing brings them back."
        if await app.ask(f"Delete {amount(len(found), 'run')}?", will, "delete"):
            removed = await asyncio.to_thread(lambda: list(remove(app.viewer(), found)))
            said = [
                forgotten(run) if error is None else f"{short(run.run)}: {error.sentence}" for run, error in removed
            ]
            failed = any(error for _, error in removed)
            app.notify("\n".join(said[-5:]), severity="warning" if failed else "information")
            self._changed()


def _named(chosen: Sequence[RunRow]) -> str:
    return short(chosen[0].run) if len(chosen) == 1 else amount(len(chosen), "run")
