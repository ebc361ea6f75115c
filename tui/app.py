"""The app: what all screens share, and how one screen opens another.

**A screen** is a subclass of `tui.screen.DisttuiScreen` in a module of its own that is imported when it is first
opened; `tui.router.SCREENS` lists them, and `tui.router.Router` opens them. That takes a moment (the module is
imported in a thread), so tests wait with `await app.workers.wait_for_complete()`. `tui.shell.Shell` is the part of the
app that screens may use, as `self.disttui`.

    class TopScreen(DisttuiScreen):
        HELP = "What every host is doing now."
        BINDINGS = [bind("top.sort", "s", "sort", "sort", "sort by the next column", group=VIEW)]

        def body(self) -> Iterable[Widget]:        # between header and footer
            yield HostTable()

        def on_mount(self) -> None:
            self.header.show("top", ["3 hosts"], state="running", right="00:12:31")

**Styles** come only from `tui.theme`: `state_words("running")` for text; for strips `component` of a `Drawn`, with the
names in `COLOURS`; in CSS the variables $muted, $rule, $selected, $selected-text, $state-running and so on, in addition
to Textual's. Screens get the classes -narrow (under 80 columns), -normal, -wide
(from 160) and -short (under 24 rows), -medium, -tall (from 40). Use `disttui.tui.widgets.table.Table` for rows.

Text from a host, a file or the user is never parsed as markup: clean it, then build `Content`.
"""

from __future__ import annotations

import asyncio
import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events, work
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen

from disttui.runner.errors import InputError
from disttui.runner.ids import short
from disttui.runner.text.glyphs import reduced
from disttui.runner.user.config import Settings
from disttui.tui import theme
from disttui.tui.dialogs.question import QuestionGate
from disttui.tui.key_queue import KeyQueue
from disttui.tui.keys import APP, MOVE, MOVES, OPEN, SHELL_COMMANDS, bind
from disttui.tui.router import First, Router, screen_class
from disttui.tui.screen import Command
from disttui.tui.shell import Shell
from disttui.tui.startup import Threads, fit_bars

if TYPE_CHECKING:
    from disttui.tui.shell import Shell


_OTHERWISE = ("rank(", "digit", "scroll", "move(", "page(", *(key.action for key in MOVES))
"""Prefixes of actions that the palette omits: the mouse wheel scrolls, and each rank has a command of its own."""


class PaletteProvider(Provider):
    """Finds actions, runs (the newest first), profiles, hosts, and shell commands, in this order."""

    async def discover(self) -> Hits:
        """Yield the entries shown before anything is typed: the actions of the screen and the newest runs."""
        for found in [*self._actions(), *list(self._runs())[:5]]:
            yield DiscoveryHit(Content(found.title), found.run, text=found.title, help=_plain(found.help))

    async def search(self, query: str) -> Hits:
        """Yield the entries that match `query`."""
        matcher = self.matcher(query)
        for found in (*self._actions(), *self._runs(), *self._profiles(), *self._hosts(), *self._typed()):
            if (score := matcher.match(found.title)) > 0:
                title = Content(found.title)  # `highlight` would parse it as markup
                for at in matcher.fuzzy_search.match(query, found.title)[1]:
                    title = title.stylize(matcher.match_style, at, at + 1)
                yield Hit(score, title, found.run, help=_plain(found.help))

    @property
    def _app(self) -> Shell:
        return cast("Shell", self.app)

    def _actions(self) -> Iterator[Command]:
        """Yield the actions of all keys, those in the footer first: the palette makes them available to the mouse."""
        seen = {"command_palette"}
        active = self.screen.active_bindings.values()
        ordered = sorted(active, key=lambda one: (not one.binding.show, one.binding.group is MOVE))
        for node, binding, enabled, _ in ordered:
            action = binding.action.removeprefix("app.")
            if enabled and binding.id and action not in seen and not action.startswith(_OTHERWISE):
                seen.add(action)
                key = self.app.get_key_display(binding)
                run = partial(self.app.run_action, binding.action, node)
                yield Command(binding.description.capitalize(), f"{key}  {binding.tooltip}", run)
        yield from getattr(self.screen, "commands", lambda: ())()
        for title, words, call, _ in self.app.get_system_commands(self.screen):
            yield Command(title, words, call)

    def _runs(self) -> Iterator[Command]:
        for row in self._app.inventory.runs:
            words = f"run, {row.state}, on {', '.join(row.hosts[:4])}"
            yield Command(short(row.run), words, partial(self._app.router.open_run, row.run))

    def _profiles(self) -> Iterator[Command]:
        for row in self._app.inventory.profiles:
            words = f"profile ({row.library or row.origin})  {row.description or row.problem}"
            yield Command(row.name, words, partial(self._app.router.open_wizard, row.path))

    def _hosts(self) -> Iterator[Command]:
        for row in self._app.inventory.hosts:
            yield Command(row.name, "host: its load", partial(self._app.router.open_load, [row.name]))

    def _typed(self) -> Iterator[Command]:
        for words, purpose in SHELL_COMMANDS:
            command = f"disttui {words}"
            yield Command(command, f"copy this command: {purpose}", partial(self._app.copy, command))


def _plain(text: str) -> str:
    """Wrap a help text in Content, which Textual also accepts, and does not parse as markup."""
    return cast("str", Content(text))


if TYPE_CHECKING:
    from disttui.runner.api.viewer import Viewer
    from disttui.tui.dialogs.prompts import AppPrompts

_KEY_NAMES = {"enter": "enter", "escape": "esc", "space": "space", "tab": "tab", "shift+tab": "shift+tab"}
_ARROWS = ("←", "→", "↑", "↓")


_ALONE = ("run", "replay", "top")
"""Kinds of screens that have a command of their own. Leaving one that its command opened ends the app."""


class DisttuiApp(Shell):
    """The terminal app.

    Args:
        environ: The environment of the process.
        settings: The user's config.
        first: The screen to open over the home screen.
        read_only: Refuse every action of the group `CHANGE`.
        ssh_config: The ssh configuration file, as for ssh's -F.
        accept_new_host_keys: Trust unknown host keys without asking.
    """

    TITLE = "disttui"
    CSS_PATH = Path(__file__).with_name("disttui.tcss")
    COMMANDS: ClassVar[set[Any]] = {PaletteProvider}
    NOTIFICATION_TIMEOUT = 6
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.help", "question_mark,f1", "help", "help", "this screen's keys, explained", group=APP),
        bind("app.palette", "ctrl+p", "command_palette", "palette", "find a run, profile, host or action", group=APP),
        bind("app.answer", "ctrl+o", "answer", "answer", "answer a host's question", group=OPEN, priority=True),
        bind("app.quit", "ctrl+q", "quit", "quit", "quit; runs continue, except in a sandbox", group=APP, show=False,
             priority=True),
        bind("app.suspend", "ctrl+z", "suspend_process", "suspend", "back to the shell; fg returns", group=APP,
             show=False),
    ]  # fmt: skip

    def __init__(
        self,
        environ: Mapping[str, str],
        settings: Settings | None = None,
        *,
        first: First | None = None,
        read_only: bool = False,
        ssh_config: str | None = None,
        accept_new_host_keys: bool = False,
    ) -> None:
        super().__init__(environ, settings or Settings(), read_only, ssh_config)
        fit_bars()
        self._questions = QuestionGate(self)
        self._keys = KeyQueue(self, super().on_event, self._questions.ignores)
        self.router = Router(self, self._keys, environ)
        self.accept_new_host_keys = accept_new_host_keys
        self.ended = threading.Event()
        """Set once the app has left the terminal, before `at_end` runs."""
        self._quitting = False
        self._first = first
        self._interrupted = -inf
        self._previewing = False
        self._clashes: set[str] = set()
        for ours in theme.THEMES:
            self.register_theme(ours)
        self.theme = self._theme_wanted()
        if "TEXTUAL_ANIMATIONS" not in environ:
            still = "SSH_CONNECTION" in environ if self.settings.animations is None else not self.settings.animations
            self.animation_level = "none" if still else "basic"

    def run_to_the_end(self) -> int:
        """Run in this terminal until the user quits, then what `at_end` has; return the exit code of the command."""
        try:
            self.run()
        finally:
            self.ended.set()
            for work in self.at_end:
                work()
        return self.return_code or 0

    async def on_event(self, event: events.Event) -> None:
        """Queue keys and clicks; handle every other event immediately."""
        if isinstance(event, events.InputEvent | events.Paste) and not event.is_forwarded:
            await self._keys.take(event)
        else:
            await super().on_event(event)

    async def on_key_queue_passed(self, message: KeyQueue.Passed) -> None:
        await self._keys.passed(message)

    def action_command_palette(self) -> None:
        if self.use_command_palette and not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette(placeholder="a run, profile, host or action", id="--command-palette"))

    def simulate_key(self, key: str) -> None:
        """Press the key whose label was clicked."""
        self._keys.press(key)

    def action_answer(self) -> None:
        self._questions.call()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer `answer` only while a question is waiting."""
        if action == "answer" and not self._questions.waiting:
            return False
        return super().check_action(action, parameters)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Define disttui's own colour variables under any theme."""
        return theme.DEFAULTS

    def get_default_screen(self) -> Screen[Any]:
        """The home screen, which is below all others; hidden at first if a command opens another."""
        home = cast("Screen[Any]", screen_class("home")())
        home.set_class(self._first is not None, "-behind")
        return home

    def on_mount(self) -> None:
        """Set up threads, keys and signals, and open the first screen."""
        asyncio.get_running_loop().set_default_executor(Threads())
        self.set_keymap(dict(self.settings.keys))
        if self.settings.theme not in ("auto", *self.available_themes):
            self.notify(f"config: unknown theme {self.settings.theme!r}", severity="warning")
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                with suppress(ValueError, NotImplementedError):
                    asyncio.get_running_loop().add_signal_handler(number, partial(self.exit, return_code=0))
            threading.Thread(target=self._await_hang_up, daemon=True).start()
        if self._first:
            self.router.open_first(self._first)

    def _await_hang_up(self) -> None:
        """Exit when the terminal closes without SIGHUP: Textual would read end-of-file in a loop, at half a core."""
        terminal = select.poll()
        terminal.register(0, 0)
        terminal.poll()
        self.call_from_thread(self.exit, return_code=0)
        if not self.ended.wait(5.0):
            os._exit(0)  # there is no terminal to restore, and a driver that writes to it may block forever

    def new_viewer(self) -> Viewer:
        """Make a viewer that the caller must close; call it in a thread worker."""
        from disttui.runner.api.viewer import Viewer

        return Viewer(
            self.environ,
            self.prompts(),
            ssh_config=self.ssh_config,
            accept_new_host_keys=self.accept_new_host_keys,
            runs_bring_theirs=True,
        )

    def prompts(self) -> AppPrompts:
        """Make the object through which connecting threads ask the user."""
        from disttui.tui.dialogs.prompts import AppPrompts

        return AppPrompts(self, self._questions)

    async def on_unmount(self) -> None:
        """Close the connections to the hosts, in a thread."""
        if self._viewer is not None:
            threading.Thread(target=self._viewer.close, daemon=True).start()

    def get_system_commands(self, screen: Screen[Any]) -> Any:
        """Yield the commands that the palette offers on every screen."""
        yield SystemCommand("Theme", "Choose a theme, with a preview", self._choose_theme)
        yield SystemCommand("Screenshot", "Save this screen as SVG", self._picture)

    def _picture(self) -> None:
        from platformdirs import user_downloads_path

        # Servers often lack that folder.
        folder = next((one for one in (user_downloads_path(), Path.home()) if one.is_dir()), None)
        name = time.strftime("disttui-%Y-%m-%d-%H-%M-%S.svg")
        self.deliver_text(
            io.StringIO(self.export_screenshot()), save_filename=name, save_directory=folder, name="picture"
        )

    def on_delivery_complete(self, event: events.DeliveryComplete) -> None:
        if event.name == "picture":
            self.notify(f"saved: {event.path}")

    def on_delivery_failed(self, event: events.DeliveryFailed) -> None:
        """Report why the screenshot was not saved."""
        if event.name == "picture":
            self.notify(f"cannot save the screenshot: {event.exception}", severity="error")

    @work(group="theme picked", exclusive=True)
    async def _choose_theme(self) -> None:
        before = self.theme
        self._previewing = True
        try:
            offered = screen_class("themes")(self.available_themes, before, partial(setattr, self, "theme"))
            self.theme = await self.push_screen_wait(offered) or before
        finally:
            self._previewing = False
        self._chosen(self.theme)

    def get_key_display(self, binding: Binding) -> str:
        """Show keys by the names printed on a keyboard."""
        shown = _KEY_NAMES.get(binding.key) or super().get_key_display(binding)
        # An arrow that is drawn as `<` or `v` would be mistaken for that key.
        return binding.key if shown in _ARROWS and reduced(sys.__stderr__) else shown

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        """Report bindings that share a key in the config, once per group."""
        names = ", ".join(sorted(binding.id or binding.action for binding in clashed_bindings))
        if names not in self._clashes:
            self._clashes.add(names)
            self.notify(f"config: {names} have the same key", severity="warning")

    def action_help(self) -> None:
        if not self.screen.is_modal:
            self.push_screen(screen_class("help")(self.screen))

    async def action_back(self) -> None:
        """Return to the previous screen, or to the shell if a command opened this one."""
        if len(self.screen_stack) == 2 and self._first and self._first.kind in _ALONE:
            self._quit()
        elif len(self.screen_stack) > 1:
            await self.pop_screen()

    async def action_quit(self) -> None:
        """Quit disttui; ask first if runs would end with it."""
        self._quit()

    @work(group="quit")
    async def _quit(self) -> None:
        if self._quitting:
            return
        self._quitting = True
        try:
            running = [short(run) for find in self.ends_with_app for run in await asyncio.to_thread(find)]
            will = "Runs on sandbox hosts end when disttui quits. Logs and metrics are kept."
            if not running or await self.ask(f"Quit and stop {', '.join(running)}?", will, "quit"):
                self.exit()
        finally:
            self._quitting = False

    def action_help_quit(self) -> None:
        """Show how to quit; a second ctrl+c while that is shown quits, a third one quits without asking."""
        now = monotonic()
        if self._quitting:
            self.exit()
        elif now - self._interrupted < self.NOTIFICATION_TIMEOUT:
            self._quit()
        self._interrupted = now
        kept = "runs keep running, except in a sandbox"
        self.notify(f"ctrl+c again or ctrl+q quits disttui, q leaves this screen; {kept}")

    def watch_theme(self, theme: str) -> None:
        if self.is_running and not self._previewing:
            self._chosen(theme)

    def _chosen(self, theme: str) -> None:
        if theme != self._theme_wanted() and not self.read_only:
            self.settings = replace(self.settings, theme=theme)
            self._remember(theme)

    @work(thread=True, group="theme")
    def _remember(self, theme: str) -> None:
        from disttui.runner.profile.save import change_config  # slow to import

        try:
            self.notify(f"theme {theme} saved in {change_config(self.environ, lambda _: {'theme': theme})}")
        except InputError as error:
            self.notify(f"cannot save theme {theme}: {error}", severity="warning")

    def _theme_wanted(self) -> str:
        wanted = self.settings.theme
        return wanted if wanted in self.available_themes else theme.suggested(self.environ)
