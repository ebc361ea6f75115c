"""All commands, and the app as one: `disttui` alone, and `disttui PROFILE`."""

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

from disttui.runner import __version__
from disttui.runner.cli.options import GLOBAL_OPTIONS, complete_profiles, emit, example, given, wants_json, with_globals
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


class Commands(UserDict[str, Any]):
    """Commands by name, each imported when it is used: all of them take 15 ms before the first connection.

    Args:
        modules: Name → the module here that has it.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.data = dict(modules)

    def __getitem__(self, name: str) -> click.Command:
        """The command; its function has its name, with a trailing `_` if Python uses that."""
        found = self.data[name]
        if isinstance(found, str):
            module = vars(import_module(f"disttui.runner.cli.{found}"))
            found = self.data[name] = with_globals(module.get(name) or module[f"{name}_"])
        command: click.Command = found
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        """Add an imported command."""
        self.data[name] = with_globals(command)


class AppGroup(click.Group):
    """The commands; a profile or script instead of a command opens the wizard on it."""

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
        """Pass a profile instead of a command to a hidden command; `help COMMAND` is `COMMAND --help`."""
        if args[0] == "help" and not _is_profile("help"):
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
            return self.resolve_command(ctx, [*args[1:], "--help"])
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
    from disttui.runner.cli.run import script_language
    from disttui.runner.profile.library import find

    path = find(profile)
    read_only = bool(ctx.parent and ctx.parent.params["read_only"])
    if script_language(path) == "Python":
        open_app(f"Use disttui run {quote(profile)} --hosts HOST,…", ("script", (path,)), read_only=read_only)
    refuse_foreign(path)
    open_app(f"Use disttui run {profile}", ("wizard", (path,)), read_only=read_only)


def open_app(instead: str, first: tuple[Opener, tuple[Any, ...]] | None = None, *, read_only: bool = False) -> NoReturn:
    """Open the app in this terminal, and end the command with it.

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
        raise InputError(f"the app needs a terminal, but {problem}", instead)
    from disttui.runner.cli import startup
    from disttui.runner.user.config import load_settings
    from disttui.tui.app import DisttuiApp
    from disttui.tui.router import First

    startup.unmask()
    config, accept = given("ssh_config"), bool(given("accept_new_host_keys"))
    screen = First(*first) if first else None
    settings = load_settings(os.environ)
    app = DisttuiApp(
        os.environ, settings, first=screen, read_only=read_only, ssh_config=config, accept_new_host_keys=accept
    )
    code, shown = app.run_to_the_end(), app.router.shown
    if shown and code == 0:
        _say_run(str(shown.arguments[0]), "attach" if shown.kind == "run" else "runs replay")
    raise SystemExit(code)


def _say_run(run: str, again: str) -> None:
    """Print a run's state and how to return to it; nothing for a recording without a run here."""
    from disttui.runner.cli.render.runs import closing_line
    from disttui.runner.runs.registry import find_run

    with suppress(InputError):
        click.echo(closing_line(find_run(run, os.environ).summary(), again), err=True)


def has_terminal() -> bool:
    """Whether a full-screen app can be shown."""
    return not _no_terminal()


def _no_terminal() -> str:
    """Why a full-screen app cannot be shown; empty if it can."""
    # Textual draws on standard error.
    for name, stream in (("input", sys.stdin), ("output", sys.stdout), ("error", sys.stderr)):
        if not stream.isatty():
            return f"standard {name} is not a terminal"
    term = os.environ.get("TERM", "")
    if not term:
        return "TERM is not set"
    return f"TERM={term} is a terminal that cannot show it" if term in ("dumb", "unknown") else ""


def _is_profile(word: str) -> bool:
    if word.endswith((".py", ".yaml", ".yml")) or "/" in word:
        return True
    if word.startswith("-") or not word:
        return False
    if Path(word).is_file():
        return True
    from disttui.runner.profile.library import named

    return named(word) is not None


_EPILOG = """\b
disttui opens the app, disttui PROFILE or SCRIPT.py its wizard. To begin:
  disttui run 2node --sandbox        try it on this machine
  disttui probe node1 node2          see what your hosts have
  disttui run 2node.yaml             train; --detach: in the background

\b
Exit codes: 0 trained · 1 training failed or a host was lost · 2 bad input ·
3 a host cannot be used, or a check failed · 130 stopped · 141 output closed.
"""

_COMMANDS = {
    "attach": "attach", "check": "check", "diagnose": "show", "exec": "exec", "library": "library",
    "logs": "logs", "mcp": "mcp", "notify": "check", "probe": "probe", "ps": "ps", "rerun": "run", "run": "run",
    "shell": "exec", "skill": "mcp", "stop": "ending", "sweep": "run", "top": "probe", "wait": "attach",
    "watch": "check",
}  # fmt: skip
"""Name → its module in this folder; other commands are below."""
_PROFILE = dict.fromkeys(("validate", "plan", "import", "export"), "profile")
_RUNS = {
    "show": "show", "diff": "show", "metrics": "metrics", "replay": "show", "pull": "show", "weights": "show",
    "forget": "ending", "gc": "ending", "orphans": "ending",
}  # fmt: skip
_LEASE = dict.fromkeys(("add", "release", "list", "queue", "move"), "lease")
MOVED = {
    **{name: f"profile {name}" for name in (*_PROFILE, "bytegpt")},
    **{name: f"runs {name}" for name in _RUNS},
    "who": "lease list", "release": "lease release", "queue": "lease queue",
}  # fmt: skip
"""Commands without their group → their full names."""


@click.group(
    cls=AppGroup,
    commands=Commands(_COMMANDS),
    epilog=_EPILOG,
    params=[*GLOBAL_OPTIONS],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="disttui")
@click.option("--read-only", is_flag=True, help="In the app: change nothing on hosts or in files.")
@click.pass_context
def cli(ctx: click.Context, read_only: bool) -> None:
    """Train with PyTorch on several machines over plain SSH.

    One profile (YAML) names the hosts. disttui decides how many processes each gets, starts all ranks together, shows
    their output and metrics, and leaves no process behind. Hosts need an SSH login and a Python with torch.
    """
    if ctx.invoked_subcommand is None:
        if not (has_terminal() or wants_json()):
            click.echo(ctx.get_help())
        open_app("Use a command: disttui ps, disttui run PROFILE, …", read_only=read_only)
    if read_only and ctx.invoked_subcommand != _open_profile.name:
        what = f"--read-only before a command applies only to the app. Put it after {ctx.invoked_subcommand}."
        raise click.UsageError(what, ctx)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    It completes commands, options, profiles, hosts and the ids of runs.

    \b
    bash: eval "$(disttui completion bash)"     in ~/.bashrc
    zsh:  eval "$(disttui completion zsh)"      in ~/.zshrc
    fish: disttui completion fish | source      in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    script = found(cli, {}, "disttui", "_DISTTUI_COMPLETE").source()
    emit({"script": script}, script)


_MEANT = {"runs list": "ps", "profile list": "library list"}


class _Ordered(click.Group):
    """A group that lists its commands in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Report a command that is not in this group."""
        typed = f"{self.name} {args[0]}"
        meant = _MEANT.get(typed, args[0])
        if args[0] not in self.commands and meant.split(" ")[0] in cli.commands:
            raise click.UsageError(f"'{typed}' is 'disttui {meant}'.", ctx)
        return super().resolve_command(ctx, args)


@cli.group(
    cls=_Ordered,
    commands=Commands(_PROFILE),
    epilog=example("disttui profile validate mine.yaml", "disttui profile plan mine.yaml"),
)
def profile() -> None:
    """Check, plan, import and export profiles."""


@profile.command(epilog=example("disttui profile bytegpt"))
def bytegpt() -> None:
    """List the arguments of the built-in job, for job.args."""
    from disttui.runner.train.options import help_text

    emit({"help": help_text()}, help_text())


@cli.group(
    cls=_Ordered, commands=Commands(_RUNS), epilog=example("disttui runs show 2node-7f3a", "disttui runs gc --older 7d")
)
def runs() -> None:
    """Inspect, compare, fetch and remove runs."""


@cli.group(
    cls=_Ordered,
    commands=Commands(_LEASE),
    epilog=example("disttui lease list", "disttui lease add box1 --gpus 0,1 --until 18:00"),
)
def lease() -> None:
    """Reserve GPUs and hosts, and show who uses them."""
