"""Shared options with completions, and the printing of results. Slow imports are made late."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

import disttui
from disttui.runner.errors import InputError
from disttui.runner.text import clean

if TYPE_CHECKING:
    from disttui.runner.api.questions import Unattended
    from disttui.runner.cli.viewing import TerminalQuestions
    from disttui.runner.profile.schema import Profile


class _Global(click.Option):
    """An option that means the same before a command and after it; only the help of disttui itself shows it."""

    def __init__(self, *names: str, **options: Any) -> None:
        super().__init__(names, expose_value=False, callback=_keep, **options)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The line of the help of disttui; None in that of a command."""
        return super().get_help_record(ctx) if ctx.parent is None else None


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    given = ctx.ensure_object(dict)
    typed = ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    if value and (typed or param.name not in given):
        given[param.name] = value


GLOBAL_OPTIONS = (
    _Global("--json", is_flag=True, help="Print JSON instead of text, errors included."),
    _Global(
        "--ssh-config",
        type=click.Path(exists=True, dir_okay=False),
        envvar="DISTTUI_SSH_CONFIG",
        show_envvar=True,
        help="ssh configuration to use, as with ssh -F.",
    ),
    _Global(
        "--accept-new-host-keys",
        is_flag=True,
        help="Add unknown host keys to known_hosts (changed keys are always refused).",
    ),
)


def with_globals(command: click.Command) -> click.Command:
    """Let a command and its subcommands accept the global options."""
    if GLOBAL_OPTIONS[0] not in command.params:
        command.params.extend(GLOBAL_OPTIONS)
        command.epilog = "\n\n".join([*filter(None, [command.epilog]), "Global options: disttui --help"])
        # A group that imports its commands when they are used adds the options then.
        if isinstance(command, click.Group) and isinstance(command.commands, dict):
            for inner in command.commands.values():
                with_globals(inner)
    return command


def given(name: str, ctx: click.Context | None = None) -> Any:
    """The value of a global option, such as `ssh_config`; None: not given."""
    ctx = ctx or click.get_current_context(silent=True)
    return ((ctx and ctx.find_object(dict)) or {}).get(name)


def wants_json() -> bool:
    """Whether the result is printed as JSON."""
    return bool(given("json"))


def can_ask() -> bool:
    """Whether a command can prompt: there is a terminal, and its output is not for a program."""
    return sys.stdin.isatty() and not wants_json()


def emit(data: object, text: str = "") -> None:
    """Print a result, as data or text; without `text`, `say` has printed it."""
    if wants_json():
        click.echo(json.dumps(data, indent=2))
    elif text:
        click.echo(text)


def emit_line(data: object, text: str) -> None:
    """Print one of many results when known: a line of JSON, or text."""
    click.echo(json.dumps(data) if wants_json() else text)


def say(text: str) -> None:
    """Print a part of the text of a result."""
    if not wants_json():
        click.echo(text)


def progress(text: str) -> None:
    """Print progress; on standard error if the output is JSON."""
    click.echo(text, err=wants_json())


_PLAIN = re.compile(r"(?:[\w./:][\w./:%+=-]*@)?(?:[\w./:@][\w./:@%+=-]*|\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]+\](?::\d+)?)")
"""A word that every shell takes literally; brackets only as in an IPv6 address."""
LOCAL = click.option("--local", is_flag=True, help="Show what this machine has, without asking any host.")
OVERRIDES = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the profile: hosts.0.num_processes=2, var.lr=1e-3; job.args.lr=1e-3 sets --lr of the job.",
)
SANDBOX = click.option("--sandbox", is_flag=True, help="Replace every host by a temporary SSH server on this machine.")
TRUST = click.option(
    "--trust-profile",
    "--trust",
    is_flag=True,
    help="Use PROFILE without asking, even if others can write it, or it is new or changed in a team library.",
)


def example(*lines: str) -> str:
    """The examples at the end of a command's help."""
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


def duration(option: str, text: str) -> float:
    """Seconds of the value of an option, such as `90s`, `12h` or `30d`. Raises InputError."""
    from disttui.runner.profile.fields import span

    seconds = span(text)
    if seconds is None:
        raise InputError(f"{option} {clean(text)!r}: not a duration", "Give 90s, 10m, 12h, 30d or 2w.")
    return seconds


def profile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the profile, and the options that change it."""
    for option in (
        TRUST,
        SANDBOX,
        OVERRIDES,
        click.argument("profile", metavar="PROFILE", shell_complete=complete_profiles),
    ):
        command = option(command)
    return command


def start_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `run` and `rerun` pass to `run_profile`, and --allow-differences."""
    for name, text in (
        ("--when-free", "Wait in the queue while others have reserved its GPUs (see disttui lease queue)."),
        ("--ignore-leases", "Start even if others have leased the GPUs or the host."),
        ("--allow-differences", "Start even if hosts have different versions of the job's code."),
        ("--detach", "Start in the background, and print the run's id."),
    ):
        command = click.option(name, is_flag=True, help=text)(command)
    return command


def complete_profiles(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    """Files, and the profiles whose names begin with `incomplete`."""
    from disttui.runner.profile.library import list_names

    return [paths("file", incomplete), *_offered(list_names(), incomplete)]


def paths(kind: str, incomplete: str) -> CompletionItem:
    """Let the shell complete a path of a kind, `file` or `dir`. Must come first: in bash it discards earlier items."""
    # click's script for zsh drops an empty word, which would shift the lines after it.
    return CompletionItem(incomplete or "./", type=kind)


def complete_hosts(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    """The hosts that begin with `incomplete`: of the ssh configuration, of known runs and of profiles."""
    from disttui.runner.hosts.discovery import ssh_hosts
    from disttui.runner.runs.places import in_view

    named = [found.host for found in ssh_hosts(given("ssh_config", ctx)).candidates]
    known = [place.host.label() for place in in_view(os.environ)]
    return _offered(dict.fromkeys((*known, *named)), incomplete)


def _offered(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The words with this prefix that shells take literally.

    A file of a team library may be called `$(…)`, which the shell would insert unquoted.
    """
    return [CompletionItem(word) for word in words if word.startswith(incomplete) and _PLAIN.fullmatch(word)]


def load_profile(name: str, overrides: tuple[str, ...] = (), *, trusted: bool | None = None) -> Profile:
    """A profile by its name or path, to be run; asks the user if another user may have written it.

    Args:
        trusted: Whether --trust-profile is given; None: the command has no such option.

    Raises:
        InputError: It cannot be used, or the user has not agreed.
    """
    with naming_trust() if trusted is not None else nullcontext():
        return disttui.load_profile(name, overrides, questions=_questions(), trusted=bool(trusted))


def _questions() -> TerminalQuestions | Unattended:
    """Who answers questions: nobody if a program reads the output."""
    from disttui.runner.api.questions import Unattended
    from disttui.runner.cli.viewing import TerminalQuestions

    return Unattended() if wants_json() else TerminalQuestions()


@contextmanager
def naming_trust() -> Iterator[None]:
    """Name the option that allows a refused profile, for commands with TRUST."""
    try:
        yield
    except disttui.DistrustError as error:
        option = "--trust" if error.doubt.changes else "--trust-profile"
        raise InputError(error.what, f"{error.cure.rstrip('.')}, or add {option}.") from None


@contextmanager
def viewing(
    played: Profile | None = None, *, otherwise: str | None = None, without_config: bool = False
) -> Iterator[disttui.Viewer]:
    """The viewer of a command.

    Args:
        played: A profile whose hosts are simulated on this machine; None: real hosts.
        otherwise: The ssh configuration if none is given.
        without_config: Ignore the user's config if it is broken.
    """
    from disttui.runner.user.config import Settings, load_settings

    settings = None
    try:
        load_settings(os.environ)  # a mistake in it is the user's, not one of each host
    except InputError as error:
        if not without_config:
            raise
        click.echo(f"disttui: {error.sentence}; the config is ignored", err=True)
        settings = Settings()
    if played is not None:
        with disttui.Viewer.in_sandbox([host.host for host in played.hosts], os.environ) as viewer:
            yield viewer
        return
    questions = _questions()
    try:
        config, accept = given("ssh_config") or otherwise, bool(given("accept_new_host_keys"))
        with disttui.Viewer(os.environ, questions, ssh_config=config, accept_new_host_keys=accept) as viewer:
            viewer.settings = settings
            yield viewer
    finally:
        questions.close()
