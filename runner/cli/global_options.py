"""The options that every command accepts, and the printing of results in the form that they ask for."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from click.core import ParameterSource


class _Global(click.Option):
    """An option that means the same before a command and after it; only the help of disttui itself shows it."""

    def __init__(self, *names: str, **options: Any) -> None:
        super().__init__(names, expose_value=False, callback=_keep, **options)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The line of the help; None in that of a command."""
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
        help="Use this file as ssh's -F does.",
    ),
    _Global(
        "--accept-new-host-keys",
        is_flag=True,
        help="Add unknown host keys to known_hosts (changed keys are always refused).",
    ),
)


def with_globals(command: click.Command) -> click.Command:
    """Have a command and its subcommands accept the global options."""
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
    """Whether a command can ask its user something: there is a terminal, and its output is not for a program."""
    return sys.stdin.isatty() and not wants_json()


def emit(data: object, text: str = "") -> None:
    """Print a result, as data or as text; without a text the text has been printed by `say`."""
    if wants_json():
        click.echo(json.dumps(data, indent=2))
    elif text:
        click.echo(text)


def emit_line(data: object, text: str) -> None:
    """Print one of many results as it becomes known: a line of JSON, or text."""
    click.echo(json.dumps(data) if wants_json() else text)


def say(text: str) -> None:
    """Print a part of the text of a result."""
    if not wants_json():
        click.echo(text)


def progress(text: str) -> None:
    """Print what is being done; where the output is JSON, on standard error."""
    click.echo(text, err=wants_json())
