"""Shared options and completions of the commands. Slow imports are made late."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from runner.errors import InputError

if TYPE_CHECKING:
    from runner.profile import Profile


_PLAIN = re.compile(r"(?:[\w./:][\w./:%+=-]*@)?(?:[\w./:@][\w./:@%+=-]*|\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]+\](?::\d+)?)")
"""A word in which shells run, divide, replace and hide nothing; brackets are those of an IPv6 address alone."""
LOCAL = click.option("--local", is_flag=True, help="Show what this machine has, without asking any host.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
AS_LINES = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of text.")
DETACH = click.option(
    "--detach", is_flag=True, help="Leave the run to itself once it runs or waits in a queue; print its id."
)
IGNORE_LEASES = click.option(
    "--ignore-leases", is_flag=True, help="Start even if others have leased the GPUs or the host."
)
WHEN_FREE = click.option(
    "--when-free",
    is_flag=True,
    help="Wait while others have leased its GPUs, then start by itself (see disttui queue).",
)
PRIORITY = click.option(
    "--priority",
    type=click.IntRange(-100, 100),
    default=0,
    help="With --when-free: go before waiting runs with a lower one.",
)
OVERRIDES = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the profile: job.args='[--steps, \"20\"]', hosts.0.num_processes=2.",
)
TRUST = click.option(
    "--trust-profile",
    "--trust",
    is_flag=True,
    help="Use PROFILE without asking, also if others can write it or it is new or changed in a team library.",
)


def example(*lines: str) -> str:
    """The examples at the end of a command's help."""
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


def ssh_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for connecting to hosts."""
    for option in (
        click.option(
            "--accept-new-host-keys",
            is_flag=True,
            help="Add unknown host keys to known_hosts (changed keys are always refused).",
        ),
        click.option(
            "--ssh-config",
            type=click.Path(exists=True, dir_okay=False),
            envvar="DISTTUI_SSH_CONFIG",
            show_envvar=True,
            help="Use this file as ssh's -F does.",
        ),
    ):
        command = option(command)
    return command


def profile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the profile, and the options that change it."""
    for option in (
        TRUST,
        click.option(
            "--sandbox",
            is_flag=True,
            help="Replace every host by a temporary SSH server on this machine.",
        ),
        OVERRIDES,
        click.argument("profile", metavar="PROFILE", shell_complete=complete_profiles),
    ):
        command = option(command)
    return command


def complete_profiles(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    """Files, and the profiles whose names begin with `incomplete`."""
    from runner.profile.library import list_names

    return [paths("file", incomplete), *_offered(list_names(), incomplete)]


def paths(kind: str, incomplete: str) -> CompletionItem:
    """Let the shell complete a path of a kind, `file` or `dir`. Must come first: in bash it discards earlier items."""
    # click's script for zsh drops an empty word, which would shift the lines after it.
    return CompletionItem(incomplete or "./", type=kind)


def complete_hosts(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    """The hosts that begin with `incomplete`: of the ssh configuration, of known runs and of profiles."""
    from runner.hosts.discovery import ssh_hosts
    from runner.runs.places import in_view

    named = [found.host for found in ssh_hosts(ctx.params.get("ssh_config")).candidates]
    known = [place.host.label() for place in in_view(os.environ)]
    return _offered(dict.fromkeys((*known, *named)), incomplete)


def _offered(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The words that begin so, but for those that a shell would read as something else.

    A file of a team library may be called `$(…)`, and the shell would put that into the line as it is.
    """
    return [CompletionItem(word) for word in words if word.startswith(incomplete) and _PLAIN.fullmatch(word)]


def load_profile(name: str, overrides: tuple[str, ...] = (), *, trusted: bool | None = None) -> Profile:
    """A profile by its name or path, to be run; asks the user where another user may have written it.

    Args:
        trusted: Whether --trust-profile is given; None: the command has no such option.

    Raises:
        InputError: It cannot be used, or the user has not agreed.
    """
    from runner.api import library
    from runner.cli.viewing import TerminalQuestions

    with naming_trust() if trusted is not None else nullcontext():
        return library.load_profile(name, overrides, questions=TerminalQuestions(), trusted=bool(trusted))


@contextmanager
def naming_trust() -> Iterator[None]:
    """Let the refusal of a profile name the option that allows it, for commands that have TRUST."""
    from runner.api.library import DistrustError

    try:
        yield
    except DistrustError as error:
        option = "--trust" if error.doubt.changes else "--trust-profile"
        raise InputError(error.what, f"{error.cure.rstrip('.')}, or add {option}.") from None
