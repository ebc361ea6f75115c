"""How one screen opens another: by a name, imported when it is first wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from textual import work
from textual.screen import Screen

from runner.errors import InputError
from tui.key_queue import KeysInTurn

if TYPE_CHECKING:
    from runner.runs.again import Again

SCREENS: Mapping[str, str] = {
    "home": "tui.home.screen:HomeScreen",
    "run": "tui.dashboard.screen:DashboardScreen",
    "replay": "tui.replay.screen:ReplayScreen",
    "wizard": "tui.wizard:WizardScreen",
    "top": "tui.top.screen:TopScreen",
    "help": "tui.dialogs.help:HelpScreen",
    "error": "tui.dialogs.profile_error:ProfileErrorScreen",
    "confirm": "tui.dialogs.confirm:ConfirmScreen",
    "themes": "tui.dialogs.themes:ThemeScreen",
}
"""Kind → module:class. Its arguments are those of the `open_…` method."""


class Opening(KeysInTurn):
    """The part of the app that opens screens."""

    def open_home(self) -> None:
        """Go back to the home screen."""
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def open_run(self, run_id: str, *, instead: Screen[Any] | None = None) -> None:
        """Open the dashboard of a run that this viewer knows, and follow it.

        Args:
            instead: The screen whose place it takes, as soon as nothing is open over that.
        """
        self._open("run", run_id, instead=instead)

    def open_replay(self, run: str) -> None:
        """Open a run from its mirror, with a cursor in time; `example` is the one that comes with disttui."""
        self._open("replay", run)

    def open_wizard(self, profile: Path | None = None, *, launch: bool = False) -> None:
        """Open the wizard on a profile, or on a new one; a profile with errors is opened at the first of them.

        Args:
            launch: Reach the hosts and check behind a dialog, and launch when nothing is in the way.
        """
        self._open_profile(profile, launch)

    @work(group="open profile", exclusive=True)
    async def _open_profile(self, profile: Path | None, launch: bool) -> None:
        async with self.keys_held():
            look = await asyncio.to_thread(_look_at, profile) if profile else _Look()
            if look.wrong:
                self._open("error", profile, look.wrong, {"launch": launch})
            elif not look.asked:
                self._open("wizard", profile, launch=launch, text=look.text)
        if profile and look.asked:
            # The wizard asks its hosts at once, which runs the profile's `activate` there.
            question = screen_class("confirm")(f"Open {profile.name}?", look.asked, "open")
            if await self.push_screen_wait(question):
                self._open("wizard", profile, launch=launch, text=look.text)

    def open_again(self, again: Again) -> None:
        """Open the wizard's last step on a run that is to be run again, and launch when the checks are through."""
        self._open("wizard", launch=True, again=again)

    def open_top(self, hosts: Sequence[str] = (), profile: Path | None = None) -> None:
        """Open the view of what hosts are doing: those named, those of a profile, or all in view."""
        self._open("top", tuple(hosts), profile)

    @work(group="open")
    async def _open(self, kind: str, *arguments: Any, instead: Screen[Any] | None = None, **named: Any) -> None:
        async with self.keys_held():
            # Importing a screen takes longer than a frame.
            made = await asyncio.to_thread(screen_class, kind)
        while instead is not None and instead in self.screen_stack and instead is not self.screen:
            await asyncio.sleep(0.05)
        async with self.keys_held():
            screen = made(*arguments, **named)
            # Not popped and pushed: what is under both would be painted between the two.
            await (self.switch_screen(screen) if instead is self.screen else self.push_screen(screen))


def screen_class(kind: str) -> Any:
    """The class of a kind of screen; imports its module."""
    module, _, name = SCREENS[kind].partition(":")
    return getattr(import_module(module), name)


class _Look(NamedTuple):
    """A profile as it was read, once: what is asked about is what is opened."""

    text: str | None = None
    wrong: InputError | None = None
    asked: str = ""
    """What is to be said before it is used; empty: nothing."""


def _look_at(profile: Path) -> _Look:
    from runner.profile import parse, read
    from runner.profile.disclosure import effect_lines
    from runner.profile.trust import doubt
    from runner.text import clean

    try:
        source = read(profile)
        known = parse(source.text, str(profile))
    except InputError as error:
        return _Look(wrong=error)
    if not (why := doubt(profile, source.status)):
        return _Look(source.text)
    told = [f"{clean(str(profile))}: {clean(why)}. It has this run with your login:"]
    return _Look(source.text, asked="\n".join([*told, *(f"{key}: {text}" for key, text in effect_lines(known))]))
