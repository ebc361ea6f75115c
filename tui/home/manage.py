"""What the home screen does with runs and profiles beyond opening them: delete, clean up, note, sort, edit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from textual import work
from textual.binding import BindingType

from runner.errors import DisttuiError, InputError
from runner.formatting import amount
from runner.ids import short
from tui.home import rows
from tui.inventory import ProfileRow, RunRow
from tui.keys import CHANGE, VIEW, bind
from tui.screen import DisttuiScreen
from tui.terminal.editor import open_editor

AGES = (("7d", "more than a week ago"), ("30d", "more than 30 days ago"), ("90d", "more than 90 days ago"))
"""Ages of ended runs that can be cleaned up, as `disttui gc --older` accepts them."""

KEYS: tuple[BindingType, ...] = (
    bind("home.edit", "e", "edit", "edit", "open this profile in $EDITOR, then check it", group=CHANGE),
    bind("home.mark", "space", "mark", "mark", "mark this run; stop, delete and tags take all marked", group=VIEW),
    bind("home.sort", "o", "sort", "order", "by age, name, state or how long they took", group=VIEW),
    bind("home.notes", "a", "notes", "tags", "tags and a note for this run, kept on this machine", group=CHANGE),
    bind("home.delete", "D", "delete", "delete", "delete this run, on its hosts and here", group=CHANGE),
    bind("home.gc", "C", "clean_up", "clean up", "delete runs that ended long ago", group=CHANGE),
)
"""Bindings that the home screen adds after its own."""


class ManageScreen(DisttuiScreen):
    """The part of the home screen that changes what it lists."""

    @property
    def chosen(self) -> Sequence[RunRow]:
        """The marked runs, or else the one under the cursor."""
        raise NotImplementedError

    @property
    def chosen_profile(self) -> ProfileRow | None:
        """The profile under the cursor."""
        raise NotImplementedError

    def read_again(self) -> None:
        """Read runs, profiles and hosts again."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only actions that fit the chosen rows."""
        if action == "edit":
            profile = self.chosen_profile
            usable = profile is not None and profile.origin != "built in"
            return usable and super().check_action(action, parameters) is True
        if action in ("notes", "delete"):
            chosen = self.chosen
            usable = bool(chosen) and (action == "notes" or all(row.may_go for row in chosen))
            return usable and super().check_action(action, parameters) is True
        if action in ("mark", "sort"):
            return bool(self.chosen)
        if action == "clean_up":
            over = any(row.over for row in self.disttui.shelf.runs)
            return over and bool(self.chosen) and super().check_action(action, parameters) is True
        return super().check_action(action, parameters)

    # Profiles

    def action_edit(self) -> None:
        """Open the profile in the user's editor; afterwards show its errors at their lines."""
        profile = self.chosen_profile
        if profile is None:
            return
        try:
            open_editor(self.app, self.disttui.environ, profile.path)
        except InputError as error:
            self.disttui.notify(str(error), severity="error")
        else:
            self._check(profile.path)

    @work(thread=True, group="check", exclusive=True)
    def _check(self, path: Path) -> None:
        from runner.profile import load

        app = self.disttui
        try:
            load(path)
        except InputError:
            self.app.call_from_thread(app.router.open_wizard, path)  # which shows the errors first
        else:
            app.notify(f"{path.name} is good")
        self.app.call_from_thread(self.read_again)

    # Runs

    @work(group="ask")
    async def action_notes(self) -> None:
        """Ask for tags and a note, and keep them."""
        from runner.runs.notes import Notes, write_notes
        from tui.home.notes import NotesScreen, changed, shared

        chosen = self.chosen
        noted = [Notes(row.tags, row.note) for row in chosen]
        if not chosen:
            return
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
        self.read_again()

    @work(group="ask")
    async def action_delete(self) -> None:
        """Ask, then delete the chosen runs on their hosts and here."""
        chosen = self.chosen
        if not chosen or not all(row.may_go for row in chosen):
            return
        home = self.disttui.environ.get("HOME", "")
        if await self.disttui.ask(f"Delete {_named(chosen)}?", rows.delete_consequence(chosen, home), "delete"):
            self._delete(chosen)

    @work(thread=True, group="delete", exit_on_error=False)
    def _delete(self, chosen: Sequence[RunRow]) -> None:
        """Delete runs one after another; say how many were deleted, and why the others were not."""
        from runner.api.ending import forget
        from runner.api.finding import find_run

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
        with suppress(RuntimeError):  # the app has ended meanwhile
            self.app.call_from_thread(self.read_again)

    @work(group="ask")
    async def action_clean_up(self) -> None:
        """Ask for an age, find older runs on the hosts, list them, and delete them after a yes."""
        from runner.api.old import old_runs, remove
        from runner.profile.numbers import age as seconds
        from runner.render.old import forgotten, old_table
        from tui.dialogs.pick import PickScreen

        app = self.disttui
        age = await self.app.push_screen_wait(PickScreen("Delete runs that have ended", AGES, "30d"))
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
            self.read_again()


def _named(chosen: Sequence[RunRow]) -> str:
    return short(chosen[0].run) if len(chosen) == 1 else amount(len(chosen), "run")
