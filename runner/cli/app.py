"""The app as a command: `disttui` alone, and `disttui PROFILE`."""

from __future__ import annotations

import os
import sys
from collections import UserDict
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import CompletionItem

from disttui.runner.cli.global_options import given, wants_json, with_globals
from disttui.runner.cli.options import complete_profiles
from disttui.runner.errors import InputError
from disttui.runner.text import quote

if TYPE_CHECKING:
    from disttui.tui.router import Opener

SECTIONS = {
    "Commands": ("run", "rerun", "ps", "attach", "logs", "diagnose", "stop", "probe", "check", "top"),
    "More commands": (
        "profile", "runs", "lease", "library", "exec", "shell", "sweep", "wait", "watch", "notify", "skill", "mcp",
        "completion",
    ),
}  # fmt: skip
"""Commands as --help lists them."""
MOVED = {
    **{name: f"profile {name}" for name in ("validate", "plan", "import", "export", "bytegpt")},
    **{
        name: f"runs {name}"
        for name in ("show", "diff", "metrics", "replay", "pull", "weights", "forget", "gc", "orphans")
    },
    "who": "lease list", "release": "lease release", "queue": "lease queue",
}  # fmt: skip
"""Commands that are named without their group → how they are named."""


class Commands(UserDict[str, Any]):
    """Commands by name, each imported when it is used: all of them take 15 ms before the first connection.

    Args:
        modules: Name → the module here that has it.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.data = dict(modules)

    def __getitem__(self, name: str) -> click.Command:
        """The command; its function has its name, with `_` behind a word of Python or a built-in name."""
        found = self.data[name]
        if isinstance(found, str):
            module = vars(import_module(f"disttui.runner.cli.{found}"))
            found = self.data[name] = with_globals(module.get(name) or module[f"{name}_"])
        command: click.Command = found
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        """Add one that is there already."""
        self.data[name] = with_globals(command)


class AppGroup(click.Group):
    """The commands; a profile or a script in place of a command opens the wizard on it."""

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
        if args[0] in MOVED:
            raise click.UsageError(f"'{args[0]}' is now 'disttui {MOVED[args[0]]}'.", ctx)
        if self.get_command(ctx, args[0]) is None and _is_profile(args[0]):
            return "open", _open_profile, args
        return super().resolve_command(ctx, args)


@click.command("open", hidden=True)
@click.argument("profile")
@click.pass_context
def _open_profile(ctx: click.Context, profile: str) -> None:
    from disttui.runner.api.interop import refuse_foreign
    from disttui.runner.profile.library import find

    path = find(profile)
    read_only = bool(ctx.parent and ctx.parent.params["read_only"])
    if path.suffix == ".py":
        open_app(f"Without one: disttui run {quote(profile)} --hosts HOST,…", ("script", (path,)), read_only=read_only)
    refuse_foreign(path)
    open_app(f"Without one: disttui run {profile}", ("wizard", (path,)), read_only=read_only)


def open_app(instead: str, first: tuple[Opener, tuple[Any, ...]] | None = None, *, read_only: bool = False) -> NoReturn:
    """Open the app in this terminal and end the command when it is left.

    Args:
        instead: The cure without a terminal: the command that does the same without a screen.
        first: The first screen: its kind (`disttui.tui.router.Opener`) and the arguments of its `open_…` method.
        read_only: Change nothing on hosts or in files.

    Raises:
        InputError: There is no terminal, or the app's config is wrong.
    """
    if wants_json():
        raise InputError("the app prints no JSON", instead)
    if problem := _no_terminal():
        raise InputError(f"the app needs a terminal, and {problem}", instead)
    from disttui.runner.cli import startup
    from disttui.tui.app import start
    from disttui.tui.router import First

    startup.unmask()
    config, accept = given("ssh_config"), bool(given("accept_new_host_keys"))
    screen = First(*first) if first else None
    code = start(os.environ, first=screen, read_only=read_only, ssh_config=config, accept_new_host_keys=accept)
    if screen and code == 0 and screen.kind in ("run", "replay"):
        _say_run(str(screen.arguments[0]), "attach" if screen.kind == "run" else "runs replay")
    raise SystemExit(code)


def _say_run(run: str, again: str) -> None:
    """Print where a run is after its screen was left; nothing of a recording that is no run of this machine."""
    from disttui.runner.cli.render.runs import closing_line
    from disttui.runner.runs.registry import find_run

    with suppress(InputError):
        click.echo(closing_line(find_run(run, os.environ).summary(), again), err=True)


def refuse_for(ctx: click.Context) -> None:
    """Refuse the app's options before a command, where they have no effect. Raises UsageError."""
    if ctx.params["read_only"] and ctx.invoked_subcommand != _open_profile.name:
        what = f"--read-only before a command is the app's. Give it after {ctx.invoked_subcommand}."
        raise click.UsageError(what, ctx)


def has_terminal() -> bool:
    """Whether a full-screen app can be shown."""
    return not _no_terminal()


def _no_terminal() -> str:
    """Why a full-screen app cannot be shown; empty where it can."""
    # Textual draws on standard error.
    for name, stream in (("input", sys.stdin), ("output", sys.stdout), ("error", sys.stderr)):
        if not stream.isatty():
            return f"standard {name} is none"
    term = os.environ.get("TERM", "")
    if not term:
        return "TERM is not set"
    return "TERM=dumb says that this one cannot draw" if term == "dumb" else ""


def _is_profile(word: str) -> bool:
    if word.endswith((".yaml", ".yml")) or "/" in word:
        return True
    if word.startswith("-") or not word:
        return False
    if Path(word).is_file():
        return True
    from disttui.runner.profile.library import named

    return named(word) is not None
