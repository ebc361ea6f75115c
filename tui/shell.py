"""The part of the app that screens may use, from the app's own thread unless a method says otherwise."""

from __future__ import annotations

import asyncio
import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from textual import work
from textual.notifications import SeverityLevel

from disttui.runner.text import clean_lines
from disttui.runner.user.config import Settings
from disttui.tui.inventory import Inventory
from disttui.tui.key_queue import KeyQueue
from disttui.tui.router import Router, screen_class
from disttui.tui.startup import TextualInside
from disttui.tui.terminal import copy

if TYPE_CHECKING:
    from disttui.runner.api.viewer import Viewer

_COMMAND = re.compile(r"(?m): (disttui (?:(?!\. ).)*)$")


class Shell(TextualInside):
    """The app's interface for screens and their helpers, as `screen.disttui`."""

    router: Router
    """Opens screens."""
    _keys: KeyQueue

    def __init__(self, environ: Mapping[str, str], settings: Settings, read_only: bool, ssh_config: str | None) -> None:
        super().__init__()
        self.environ = environ
        self.settings = settings
        self.read_only = read_only
        """Whether --read-only is set. `DisttuiScreen` then refuses actions of the group `tui.keys.CHANGE`."""
        self.ssh_config = ssh_config
        self.inventory = Inventory()
        """The runs, profiles and hosts that the palette and the home screen show, as last read."""
        self.at_end: list[Callable[[], object]] = []
        """Functions called after the app has ended and the terminal is restored."""
        self.ends_with_app: list[Callable[[], list[str]]] = []
        """Functions that return the ids of running runs that end with the app; called in a thread."""
        self._viewer: Viewer | None = None
        self._viewing = threading.Lock()

    @property
    def typed_at(self) -> float:
        """When the key that is now being handled was typed (monotonic clock, s)."""
        return self._keys.typed_at

    async def ask(self, question: str, consequence: str, yes: str = "yes", *, unrequested: bool = False) -> bool:
        """Return whether the user confirms an action that cannot be undone; call it in a worker.

        Args:
            question: Such as `Stop 2node-7f3a?`.
            consequence: What the action will do, in full sentences.
            yes: The label of the button that confirms.
            unrequested: Whether it is asked so long after a key that the user may be typing something else.
        """
        asked = screen_class("confirm")(question, consequence, yes, unrequested=unrequested)
        return bool(await self.push_screen_wait(asked))

    def viewer(self) -> Viewer:
        """The viewer that all screens share, made when it is first needed; call it in a thread worker."""
        with self._viewing:
            if self._viewer is None:
                self._viewer = self.new_viewer()
            return self._viewer

    @abstractmethod
    def new_viewer(self) -> Viewer:
        """Make a viewer that the caller must close; call it in a thread worker."""

    @work(group="copy")
    async def copy(self, text: str) -> None:
        """Copy to the clipboard by the best method available, and report which."""
        self.keep_copied(text)
        done = await asyncio.to_thread(copy, text, self.environ)
        if done.sequence:
            self.send(done.sequence)
        self.notify(done.words, severity="information" if done.good else "warning")

    def copy_to_clipboard(self, text: str) -> None:
        """Copy from Textual's own widgets by `copy` as well."""
        self.copy(text)

    def notify(
        self, message: str, *, title: str = "", severity: SeverityLevel = "information", timeout: float | None = None,
        markup: bool = False,
    ) -> None:  # fmt: skip
        """Show a toast; its text is cleaned, and never parsed as markup. A command at the end of a line gets a line of
        its own, so that it can be copied whole. Any thread may call it."""
        text = _COMMAND.sub(r"\n→ \1", clean_lines(message))
        super().notify(text, title=clean_lines(title), severity=severity, timeout=timeout, markup=False)
