"""The entries of the command palette: the actions of the screen, runs, profiles, hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from runner.ids import short
from tui.keys import MOVE, MOVES
from tui.shell_commands import SHELL_COMMANDS

if TYPE_CHECKING:
    from tui.shell import Shell


_OTHERWISE = ("rank(", "digit", "scroll", "move(", "page(", *(key.action for key in MOVES))
"""How actions begin that a mouse has another way to: the wheel moves, and each rank is a command of its own."""


class PaletteEntry(NamedTuple):
    """One line of the palette."""

    title: str
    help: str
    run: Callable[[], object]


class Everything(Provider):
    """Finds actions first, then runs (the newest first), profiles, hosts, and what is typed in a shell."""

    async def discover(self) -> Hits:
        """The entries shown before anything is typed: the actions of the screen and the newest runs."""
        for found in [*self._actions(), *list(self._runs())[:5]]:
            yield DiscoveryHit(Content(found.title), found.run, text=found.title, help=_plain(found.help))

    async def search(self, query: str) -> Hits:
        """The entries that match `query`."""
        matcher = self.matcher(query)
        for found in (*self._actions(), *self._runs(), *self._profiles(), *self._hosts(), *self._typed()):
            if (score := matcher.match(found.title)) > 0:
                yield Hit(score, matcher.highlight(found.title), found.run, help=_plain(found.help))

    @property
    def _app(self) -> Shell:
        return cast("Shell", self.app)

    def _actions(self) -> Iterator[PaletteEntry]:
        """All that keys do here, what the footer shows first: with a mouse alone there is no other way to it."""
        seen = {"command_palette"}
        active = self.screen.active_bindings.values()
        ordered = sorted(active, key=lambda one: (not one.binding.show, one.binding.group is MOVE))
        for node, binding, enabled, _ in ordered:
            action = binding.action.removeprefix("app.")
            if enabled and binding.id and action not in seen and not action.startswith(_OTHERWISE):
                seen.add(action)
                key = self.app.get_key_display(binding)
                run = partial(self.app.run_action, binding.action, node)
                yield PaletteEntry(binding.description.capitalize(), f"{key}  {binding.tooltip}", run)
        for command in getattr(self.screen, "commands", lambda: ())():
            yield PaletteEntry(*command)
        for title, words, call, _ in self.app.get_system_commands(self.screen):
            yield PaletteEntry(title, words, call)

    def _runs(self) -> Iterator[PaletteEntry]:
        for row in self._app.shelf.runs:
            words = f"run, {row.state}, on {', '.join(row.hosts[:4])}"
            yield PaletteEntry(short(row.run), words, partial(self._app.router.open_run, row.run))

    def _profiles(self) -> Iterator[PaletteEntry]:
        for row in self._app.shelf.profiles:
            words = f"profile ({row.library or row.origin})  {row.description or row.problem}"
            yield PaletteEntry(row.name, words, partial(self._app.router.open_wizard, row.path))

    def _hosts(self) -> Iterator[PaletteEntry]:
        for row in self._app.shelf.hosts:
            yield PaletteEntry(row.name, "host: what it is doing now", partial(self._app.router.open_top, [row.name]))

    def _typed(self) -> Iterator[PaletteEntry]:
        for words, purpose in SHELL_COMMANDS:
            command = f"disttui {words}"
            yield PaletteEntry(command, f"copies this command: {purpose}", partial(self._app.copy, command))


def _plain(text: str) -> str:
    """Content in place of a string: Textual accepts it as help, too, and does not parse it as markup."""
    return cast("str", Content(text))
