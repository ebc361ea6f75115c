"""Opens screens by name; the module of a screen is imported when it is first needed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from textual.app import App
from textual.screen import Screen

from disttui.runner.errors import InputError
from disttui.tui.key_queue import KeyQueue

if TYPE_CHECKING:
    from disttui.runner.api.library import ReadProfile
    from disttui.runner.api.rerunning import Again

SCREENS: Mapping[str, str] = {
    "home": "disttui.tui.home.screen:HomeScreen",
    "run": "disttui.tui.dashboard.screen:DashboardScreen",
    "replay": "disttui.tui.replay.screen:ReplayScreen",
    "wizard": "disttui.tui.wizard:WizardScreen",
    "top": "disttui.tui.top.screen:TopScreen",
    "compare": "disttui.tui.compare.screen:CompareScreen",
    "help": "disttui.tui.dialogs.help:HelpScreen",
    "error": "disttui.tui.dialogs.profile_error:ProfileErrorScreen",
    "confirm": "disttui.tui.dialogs.prompts:ConfirmScreen",
    "rerun": "disttui.tui.dialogs.rerun:RerunScreen",
    "pull": "disttui.tui.dialogs.pulling:PullScreen",
    "themes": "disttui.tui.dialogs.prompts:ThemeScreen",
}
"""Kind → module:class; the class takes the arguments of `open_…`. Strings, because screens import this module."""


Opener = Literal["run", "replay", "wizard", "script", "top"]


class First(NamedTuple):
    """The screen to open over the home screen: its kind, and the arguments of its `open_…` method."""

    kind: Opener
    arguments: tuple[Any, ...]


class Router:
    """Opens the app's screens.

    Args:
        app: The app whose screens it opens.
        keys: Holds keys back while a screen is being opened: they belong to that screen.
        environ: The environment, which determines the user's folders.
    """

    def __init__(self, app: App[None], keys: KeyQueue, environ: Mapping[str, str] = os.environ) -> None:
        self._app = app
        self._environ = environ
        self._keys = keys
        self.shown: First | None = None
        """The run or replay that was opened last."""

    def open_first(self, first: First) -> None:
        """Open the screen that a command asks for."""
        getattr(self, f"open_{first.kind}")(*first.arguments)

    def open_run(self, run_id: str, *, instead: Screen[Any] | None = None, repeats: str = "") -> None:
        """Open the dashboard of a run that this viewer knows, and follow it.

        Args:
            instead: The screen to replace, as soon as no other screen is over it.
            repeats: The run that this one reruns: if its screen is directly below, it is closed as well. Otherwise each
                rerun would leave another screen open, with its connections.
        """
        self.shown = First("run", (run_id,))
        self._open("run", run_id, instead=instead, repeats=repeats)

    def open_replay(self, run: str, playing: bool = False) -> None:
        """Open the replay of a run from its mirror; `example` is the recording that ships with disttui.

        Args:
            playing: Play it from its beginning instead of showing its end.
        """
        self.shown = First("replay", (run,))
        self._open("replay", run, playing)

    def open_wizard(self, profile: Path | None = None, *, launch: bool = False) -> None:
        """Open the wizard on a profile or on a new one; if the profile has errors, show them instead.

        Args:
            launch: Connect to the hosts and check them behind a dialog, and launch if no check fails.
        """
        self._app.run_worker(self._opened_profile(profile, launch), group="open profile", exclusive=True)

    def open_script(self, script: Path) -> None:
        """Open the wizard for a local script."""
        self._open("wizard", script=script)

    def open_sandbox(self) -> None:
        """Open the wizard on the built-in job, and launch it on sandbox hosts once the checks have passed."""
        self._open("wizard", launch=True, played=True)

    def open_again(self, again: Again) -> None:
        """Open the wizard's last step to rerun a run, and launch when the checks have passed."""
        self._open("wizard", launch=True, again=again)

    def open_top(self, hosts: Sequence[str] = (), profile: Path | None = None) -> None:
        """Open the load view of the named hosts, those of a profile, or all known hosts."""
        self._open("top", tuple(hosts), profile)

    def open_load(self, hosts: Sequence[str]) -> None:
        """Open the load view of hosts, whatever profiles are called."""
        self.open_top([*hosts, *hosts])  # a single word may be a profile's name

    def open_compare(self, runs: Sequence[str]) -> None:
        """Open the comparison of the first run with the others."""
        self._open("compare", tuple(runs))

    def open_pull(self, run: str) -> None:
        """Open the dialog that copies the checkpoints and results of a run to this machine."""
        self._open("pull", run)

    def _open(
        self, kind: str, *arguments: Any, instead: Screen[Any] | None = None, repeats: str = "", **named: Any
    ) -> None:
        self._app.run_worker(self._opened(kind, arguments, named, instead, repeats), group="open")

    async def _opened_profile(self, profile: Path | None, launch: bool) -> None:
        async with self._keys.held():
            look = await asyncio.to_thread(_look_at, profile, self._environ) if profile else _Look()
            if look.wrong:
                self._open("error", profile, look.wrong, launch=launch)
            elif not look.asked:
                self._open("wizard", look.read, launch=launch)
        if profile and look.read and look.asked:
            # The wizard probes its hosts immediately, which runs the profile's `activate` on them.
            question = screen_class("confirm")(f"Open {profile.name}?", look.asked, "open")
            if await self._app.push_screen_wait(question):
                await asyncio.to_thread(look.read.agree, self._environ)
                self._open("wizard", look.read, launch=launch)

    async def _opened(
        self, kind: str, arguments: tuple[Any, ...], named: Mapping[str, object], instead: Screen[Any] | None,
        repeats: str,
    ) -> None:  # fmt: skip
        async with self._keys.held():
            # Importing a screen takes longer than a frame.
            made = await asyncio.to_thread(screen_class, kind)
        while instead is not None and instead in self._app.screen_stack and instead is not self._app.screen:
            await asyncio.sleep(0.05)
        async with self._keys.held():
            screen = made(*arguments, **named)
            if instead is not self._app.screen:
                await self._app.push_screen(screen)
                return
            # Pop and push would paint the screen below in between.
            with self._app.batch_update():
                if repeats and repeats == getattr(getattr(self._app.screen_stack[-2], "known", None), "run", ""):
                    await self._app.pop_screen()
                await self._app.switch_screen(screen)


def screen_class(kind: str) -> Any:
    """The class of a kind of screen; imports its module."""
    module, _, name = SCREENS[kind].partition(":")
    return getattr(import_module(module), name)


class _Look(NamedTuple):
    """A profile, read once: the wizard opens exactly what the user confirmed, even if its files have changed."""

    read: ReadProfile | None = None
    wrong: InputError | None = None
    asked: str = ""
    """What the user must confirm before the profile is used; empty if nothing."""


def _look_at(profile: Path, environ: Mapping[str, str]) -> _Look:
    from disttui.runner.api.library import read_profile
    from disttui.runner.profile.effects import effect_lines

    try:
        found = read_profile(str(profile), check_job=False, environ=environ)
    except InputError as error:
        return _Look(wrong=error)
    if found.doubt is None:
        return _Look(found)
    lines = [f"{found.doubt}. With your login, it runs:"]
    lines += (f"{key}: {text}" for key, text in effect_lines(found.profile))
    if found.doubt.changes:
        lines = [f"{found.doubt}:", *found.doubt.changes]
    return _Look(found, asked="\n".join(lines))
