"""The app as a command: `disttui` alone, and `disttui PROFILE`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from runner.cli.options import complete_profiles
from runner.errors import InputError

if TYPE_CHECKING:
    from tui.router import Opener

SECTIONS = {
    "Before a run": ("probe", "validate", "plan", "import", "export", "top"),
    "Runs": (
        "run", "rerun", "ps", "attach", "logs", "show", "metrics", "diff", "diagnose", "replay", "pull", "weights",
    ),
    "Sharing hosts": ("who", "lease", "release", "queue", "sweep"),
    "The end of runs": ("stop", "orphans", "forget", "gc"),
    "Setting up": ("library", "bytegpt", "completion"),
}  # fmt: skip
"""Commands as --help lists them, in the order of their use."""


class Commands(MutableMapping[str, click.Command]):
    """Commands by name, each imported when it is used: all of them take 15 ms before the first connection."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        self._found: dict[str, click.Command | None] = dict.fromkeys(modules)

    def __getitem__(self, name: str) -> click.Command:
        """The command; its function has its name, with `_` behind a word of Python."""
        found = self._found[name]
        if found is None:
            module = import_module(f"runner.cli.{self._modules[name]}")
            found = self._found[name] = getattr(module, f"{name}_" if iskeyword(name) else name)
        return found

    def __setitem__(self, name: str, command: click.Command) -> None:
        """Add one that is there already."""
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        """Leave one out."""
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        return iter(self._found)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._found)


class AppGroup(click.Group):
    """The commands; a profile in place of a command opens the wizard on it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by purpose."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands and options, else profiles."""
        found = super().shell_complete(ctx, incomplete)
        return found or complete_profiles(ctx, self, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Pass a profile in place of a command to a hidden command."""
        if self.get_command(ctx, args[0]) is None and _is_profile(args[0]):
            return "open", _open_profile, args
        return super().resolve_command(ctx, args)


@click.command("open", hidden=True)
@click.argument("profile")
@click.pass_context
def _open_profile(ctx: click.Context, profile: str) -> None:
    from runner.profile.library import find

    path = find(profile)
    options = ctx.parent.params if ctx.parent else {}
    open_app(f"Without one: disttui run {profile}", ("wizard", (path,)), **options)


def open_app(instead: str, first: tuple[Opener, tuple[Any, ...]] | None = None, **options: Any) -> NoReturn:
    """Open the app in this terminal and end the process when it is left.

    Args:
        instead: The cure without a terminal: the command that does the same without a screen.
        first: The first screen: its kind (`tui.router.Opener`) and the arguments of its `open_…` method.
        options: `read_only`, `ssh_config`, `accept_new_host_keys`.

    Raises:
        InputError: There is no terminal, or the app's config is wrong.
    """
    if problem := _no_terminal():
        raise InputError(f"the app needs a terminal, and {problem}", instead)
    from runner.cli import startup
    from tui.app import start
    from tui.router import First

    startup.unmask()
    code = start(os.environ, first=First(*first) if first else None, **options)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that still wait for a dead host would delay a normal exit.
    os._exit(code)


def refuse_for(ctx: click.Context) -> None:
    """Refuse the app's options before a command, where they have no effect. Raises UsageError."""
    given = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given and ctx.invoked_subcommand != _open_profile.name:
        option = f"--{given[0].replace('_', '-')}"
        raise click.UsageError(f"{option} before a command is the app's. Give it after {ctx.invoked_subcommand}.", ctx)


def has_terminal() -> bool:
    """Whether a full-screen app can be shown."""
    return not _no_terminal()


def _no_terminal() -> str:
    """Why a full-screen app cannot be shown; empty where it can."""
    # Textual draws on standard error.
    for name, stream in (("input", sys.stdin), ("output", sys.stdout), ("error", sys.stderr)):
        if not stream.isatty():
            return f"standard {name} is none"
    term = os.environ.get("TERM", "dumb")
    return "TERM says that this one cannot draw" if term == "dumb" else ""


def _is_profile(word: str) -> bool:
    if word.endswith((".yaml", ".yml")) or "/" in word:
        return True
    if word.startswith("-") or not word:
        return False
    if Path(word).is_file():
        return True
    from runner.profile.library import named

    return named(word) is not None
