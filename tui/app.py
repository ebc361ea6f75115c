"""The app: what all screens share, and how one screen opens another.

**A screen** is a subclass of `tui.screen.DisttuiScreen` in a module of its own that is imported when it is first
opened; `tui.router.SCREENS` names them, and `tui.router.Router` alone opens them. That takes a moment (the module is
imported in a thread), so tests wait with `await app.workers.wait_for_complete()`. `tui.shell.Shell` is what a screen
may call of the app; `self.disttui` is one.

    class TopScreen(DisttuiScreen):
        HELP = "What every host is doing now."
        BINDINGS = [bind("top.sort", "s", "sort", "sort", "sort by the next column", group=VIEW)]

        def body(self) -> Iterable[Widget]:        # header, footer and the "too small" word are there already
            yield HostTable()

        def on_mount(self) -> None:
            self.header.show("top", ["3 hosts"], state="running", right="00:12:31")

**Looks** come from `tui.theme` alone: `state_words("running")` for text; for strips `component` of a `Drawn`, with its
COMPONENT_CLASSES and the names in `COLOURS`; in CSS the variables $muted, $rule, $selected, $selected-text,
$state-running and so on beside Textual's. Screens get the classes -narrow (under 80 columns), -normal, -wide (from
160) and -short (under 24 rows), -medium, -tall (from 40). Use `tui.widgets.table.Table` for rows and
`tui.widgets.empty.Empty` for a pane that has no content yet.

Text from a host, a file or the user is never parsed as markup: clean it, then build `Content`.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
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
from textual.command import CommandPalette
from textual.dom import DOMNode
from textual.notifications import SeverityLevel
from textual.screen import Screen

from runner.errors import InputError
from runner.text import clean_lines
from runner.text.glyphs import reduced
from runner.user.config import Settings, load_settings
from tui import theme
from tui.dialogs.questions import QuestionGate
from tui.inventory import Shelf
from tui.key_queue import KeyQueue
from tui.keys import APP, OPEN, bind
from tui.palette import Everything
from tui.router import First, Router, screen_class
from tui.startup import TextualInside, Threads, fit_bars
from tui.terminal import clipboard

if TYPE_CHECKING:
    from runner.api.viewer import Viewer
    from tui.dialogs.prompts import AppPrompts

_KEY_NAMES = {"enter": "enter", "escape": "esc", "space": "space", "tab": "tab", "shift+tab": "shift+tab"}
_COMMAND = re.compile(r"(?m): (disttui .*)$")
_ARROWS = ("←", "→", "↑", "↓")


_ALONE = ("run", "replay", "top")
"""Screens that a command of their own opens. Leaving such a screen ends the app instead of showing the home screen."""


class DisttuiApp(TextualInside):
    """The terminal app.

    Args:
        environ: The environment of the process.
        settings: The user's config.
        first: The screen to open over the home screen.
        read_only: Refuse every action of the group `CHANGE`.
        ssh_config: The file to use as the ssh configuration, as with ssh's -F.
        accept_new_host_keys: Trust unknown host keys without asking.
    """

    TITLE = "disttui"
    CSS_PATH = Path(__file__).with_name("disttui.tcss")
    COMMANDS: ClassVar[set[Any]] = {Everything}
    NOTIFICATION_TIMEOUT = 6
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.help", "question_mark,f1", "help", "help", "the keys of this screen, in words", group=APP),
        bind("app.palette", "ctrl+p", "command_palette", "palette", "find a run, profile, host or action", group=APP),
        bind("app.answer", "ctrl+o", "answer", "answer", "answer what a host asks", group=OPEN, priority=True),
        bind("app.quit", "ctrl+q", "quit", "quit", "leave disttui; runs go on", group=APP, show=False, priority=True),
    ]

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
        super().__init__()
        fit_bars()
        self.environ = environ
        self._questions = QuestionGate(self)
        self._keys = KeyQueue(self, super().on_event, self._questions.ignores)
        self.router = Router(self, self._keys, environ)
        self.settings = settings or Settings()
        self.read_only = read_only
        self.ssh_config = ssh_config
        self.accept_new_host_keys = accept_new_host_keys
        self.shelf = Shelf()
        """Runs, profiles and hosts as last read; the palette and the home screen show it."""
        self.at_end: list[Callable[[], None]] = []
        """Called after the app has ended and the terminal is restored."""
        self._first = first
        self._interrupted = -inf
        self._previewing = False
        self._viewer: Viewer | None = None
        self._viewing = threading.Lock()
        self._clashes: set[str] = set()
        for ours in theme.THEMES:
            self.register_theme(ours)
        self.theme = self._theme_wanted()
        if "TEXTUAL_ANIMATIONS" not in environ:
            still = "SSH_CONNECTION" in environ if self.settings.animations is None else not self.settings.animations
            self.animation_level = "none" if still else "basic"

    async def on_event(self, event: events.Event) -> None:
        """Queue what the user types and clicks, handle every other event at once."""
        if isinstance(event, events.InputEvent | events.Paste) and not event.is_forwarded:
            await self._keys.take(event)
        else:
            await super().on_event(event)

    async def on_key_queue_passed(self, message: KeyQueue.Passed) -> None:
        """Let the queue handle the next key."""
        await self._keys.passed(message)

    def action_command_palette(self) -> None:
        """Show the palette; its line says what it finds."""
        if self.use_command_palette and not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette(placeholder="a run, profile, host or action", id="--command-palette"))

    def simulate_key(self, key: str) -> None:
        """Press the key that a click stands for."""
        self._keys.press(key)

    @property
    def typed_at(self) -> float:
        """When the key that is now being handled was typed (monotonic clock, s)."""
        return self._keys.typed_at

    def action_answer(self) -> None:
        """Show the waiting question now."""
        self._questions.call()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer `answer` only while a question waits."""
        if action == "answer" and not self._questions.waiting:
            return False
        return super().check_action(action, parameters)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Define disttui's own colour variables under any theme."""
        return theme.DEFAULTS

    def get_default_screen(self) -> Screen[Any]:
        """The screen under all others."""
        return cast("Screen[Any]", screen_class("home")())

    def on_mount(self) -> None:
        """Set up threads, keys and signals, and open the first screen."""
        asyncio.get_running_loop().set_default_executor(Threads())
        self.set_keymap(dict(self.settings.keys))
        if self.settings.theme not in ("auto", *self.available_themes):
            self.notify(f"config: there is no theme {self.settings.theme!r}", severity="warning")
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
        time.sleep(5.0)
        os._exit(0)  # no terminal is left to restore, and a driver that writes to it may block for ever

    async def ask(self, question: str, consequence: str, yes: str = "yes") -> bool:
        """Ask before an action that cannot be undone; call it in a worker.

        Args:
            question: `Stop 2node-7f3a?`
            consequence: What the action will do, in full sentences.
            yes: The label of the button that confirms.
        """
        return bool(await self.push_screen_wait(screen_class("confirm")(question, consequence, yes)))

    def viewer(self) -> Viewer:
        """The viewer that all screens share, made when it is first needed; call it in a thread worker."""
        with self._viewing:
            if self._viewer is None:
                self._viewer = self.new_viewer()
            return self._viewer

    def new_viewer(self) -> Viewer:
        """A viewer to be closed by the caller; call it in a thread worker."""
        from runner.api.viewer import Viewer

        return Viewer(
            self.environ,
            self.prompts(),
            ssh_config=self.ssh_config,
            accept_new_host_keys=self.accept_new_host_keys,
            runs_bring_theirs=True,
        )

    def prompts(self) -> AppPrompts:
        """Make the object through which connecting threads ask the user."""
        from tui.dialogs.prompts import AppPrompts

        return AppPrompts(self, self._questions)

    async def on_unmount(self) -> None:
        """Close the connections to the hosts, in a thread."""
        if self._viewer is not None:
            threading.Thread(target=self._viewer.close, daemon=True).start()

    @work(group="copy")
    async def copy(self, text: str) -> None:
        """Copy to the clipboard by the best way available here, and say which."""
        self.keep_copied(text)
        done = await asyncio.to_thread(clipboard.copy, text, self.environ)
        if done.sequence:
            self.send(done.sequence)
        self.notify(done.words, severity="information" if done.good else "warning")

    def copy_to_clipboard(self, text: str) -> None:
        """Use `copy` for Textual's own widgets, too."""
        self.copy(text)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a toast; its text is cleaned, and never parsed as markup. A command at a line's end gets its own line,
        where nothing breaks what is to be copied."""
        text = _COMMAND.sub(r"\n→ \1", clean_lines(message))
        super().notify(text, title=clean_lines(title), severity=severity, timeout=timeout, markup=False)

    def get_system_commands(self, screen: Screen[Any]) -> Any:
        """The commands that the palette offers on every screen."""
        yield SystemCommand(
            "Theme", "Choose other colours; each is shown while the cursor is on it", self._choose_theme
        )
        yield SystemCommand("Picture of this screen", "Save it as SVG", self._picture)

    def _picture(self) -> None:
        from platformdirs import user_downloads_path

        # A server seldom has that folder.
        folder = next((one for one in (user_downloads_path(), Path.home()) if one.is_dir()), None)
        name = time.strftime("disttui-%Y-%m-%d-%H-%M-%S.svg")
        self.deliver_text(
            io.StringIO(self.export_screenshot()), save_filename=name, save_directory=folder, name="picture"
        )

    def on_delivery_complete(self, event: events.DeliveryComplete) -> None:
        """Say where the picture was saved."""
        if event.name == "picture":
            self.notify(f"saved: {event.path}")

    def on_delivery_failed(self, event: events.DeliveryFailed) -> None:
        """Say why the picture could not be saved."""
        if event.name == "picture":
            self.notify(f"the picture is not saved: {event.exception}", severity="error")

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
        # An arrow that is drawn as `<` or `v` would be taken for that key.
        return binding.key if shown in _ARROWS and reduced(sys.__stderr__) else shown

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        """Say once which bindings share a key in the config."""
        names = ", ".join(sorted(binding.id or binding.action for binding in clashed_bindings))
        if names not in self._clashes:
            self._clashes.add(names)
            self.notify(f"config: {names} have the same key", severity="warning")

    def action_help(self) -> None:
        """Show every key of the screen."""
        if not self.screen.is_modal:
            self.push_screen(screen_class("help")(self.screen))

    async def action_back(self) -> None:
        """Leave the screen: to the one before it, or to the shell if a command opened this screen alone."""
        if len(self.screen_stack) == 2 and self._first and self._first.kind in _ALONE:
            self.exit()
        elif len(self.screen_stack) > 1:
            await self.pop_screen()

    def action_help_quit(self) -> None:
        """Say how to leave disttui; a second ctrl+c while that is shown leaves it."""
        now = monotonic()
        if now - self._interrupted < self.NOTIFICATION_TIMEOUT:
            self.exit()
        self._interrupted = now
        self.notify("ctrl+c again or ctrl+q leaves disttui, q this screen; runs go on")

    def watch_theme(self, theme: str) -> None:
        """Save the theme that the user chose."""
        if self.is_running and not self._previewing:
            self._chosen(theme)

    def _chosen(self, theme: str) -> None:
        if theme != self._theme_wanted() and not self.read_only:
            self.settings = replace(self.settings, theme=theme)
            self._remember(theme)

    @work(thread=True, group="theme")
    def _remember(self, theme: str) -> None:
        from runner.profile.config_edit import change_config  # rarely needed, and slow to import

        try:
            self.notify(f"{theme} is remembered in {change_config(self.environ, lambda _: {'theme': theme})}")
        except InputError as error:
            self.notify(f"{theme} is not remembered: {error}", severity="warning")

    def _theme_wanted(self) -> str:
        wanted = self.settings.theme
        return wanted if wanted in self.available_themes else theme.suggested(self.environ)


def start(
    environ: Mapping[str, str],
    *,
    first: First | None = None,
    read_only: bool = False,
    ssh_config: str | None = None,
    accept_new_host_keys: bool = False,
) -> int:
    """Run the app in this terminal until the user leaves it; return the exit code of the command.

    Args:
        first: The screen to open over the home screen.

    Raises:
        InputError: The config is wrong.
    """
    app = DisttuiApp(
        environ,
        load_settings(environ),
        first=first,
        read_only=read_only,
        ssh_config=ssh_config,
        accept_new_host_keys=accept_new_host_keys,
    )
    try:
        app.run()
    finally:
        for work in app.at_end:
            work()
    return app.return_code or 0
