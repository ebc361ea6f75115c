"""What the commands share: options, completion, the way to the hosts. Imports that cost time are made late."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from runner.errors import InputError

if TYPE_CHECKING:
    from runner.profile import Profile


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
AS_LINES = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of text.")
DETACH = click.option(
    "--detach", is_flag=True, help="Leave the run to itself once all hosts have joined; print its id."
)
OVERRIDES = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the profile: job.args='[--steps, \"20\"]', hosts.0.num_processes=2.",
)


def example(*lines: str) -> str:
    """The end of a command's help: what it looks like when it is used."""
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


def ssh_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how hosts are reached."""
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
        click.option(
            "--trust-profile",
            is_flag=True,
            help="Use PROFILE also if it belongs to another user or everybody can write it.",
        ),
        click.option(
            "--sandbox",
            is_flag=True,
            help="Play every host by a throwaway SSH server on this machine's loopback.",
        ),
        OVERRIDES,
        click.argument("profile", metavar="PROFILE", shell_complete=complete_profiles),
    ):
        command = option(command)
    return command


def complete_profiles(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    """Files, and the profiles whose names begin so."""
    from runner.profile.library import list_profiles

    known = [CompletionItem(entry.name) for entry in list_profiles() if entry.name.startswith(incomplete)]
    return [paths("file", incomplete), *known]


def paths(kind: str, incomplete: str) -> CompletionItem:
    """Lets the shell complete a path of a kind, `file` or `dir`. Goes first: in bash it takes back what was before."""
    # click's script for zsh loses an empty word, and with it which line is which.
    return CompletionItem(incomplete or "./", type=kind)


def complete_hosts(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    """The hosts that begin so: of the ssh configuration, of known runs, of the user's and the team's profiles."""
    from runner.hosts.discovery import ssh_hosts
    from runner.runs.places import in_view

    named = [found.host for found in ssh_hosts(ctx.params.get("ssh_config")).candidates]
    known = [place.host.label() for place in in_view(os.environ)]
    return [CompletionItem(host) for host in dict.fromkeys((*known, *named)) if host.startswith(incomplete)]


def load_profile(name: str, overrides: tuple[str, ...] = (), *, trusted: bool | None = None) -> Profile:
    """A profile by its name or path that may be run: one that may be somebody else's word is asked about.

    Args:
        trusted: Whether --trust-profile is given; None: the command has no such option.

    Raises:
        InputError: It cannot be used; nobody has said yes.
    """
    from runner.profile.trust import doubt

    path, profile, status = read_profile(name, overrides)
    if not trusted and (why := doubt(path, status)):
        _ask_about(path, profile, why, "" if trusted is None else ", or add --trust-profile")
    return profile


def read_profile(name: str, overrides: tuple[str, ...] = ()) -> tuple[Path, Profile, os.stat_result]:
    """A profile by its name or path, whose built-in job takes its arguments, only to be looked at.

    Raises:
        InputError: It cannot be used.
    """
    from runner.planning import bytegpt
    from runner.profile import parse, read
    from runner.profile.library import find
    from runner.text import clean

    path = find(name)
    source = read(path)
    profile = parse(source.text, str(path), overrides)
    if profile.job.builtin and (problem := bytegpt.problem(profile.job.args)):
        raise InputError(f"{clean(str(path))}: job.args: {problem}")
    return path, profile, source.status


def _ask_about(path: Path, profile: Profile, why: str, option: str) -> None:
    """Show what a profile's file has run, and ask. Raises InputError."""
    from runner.profile.disclosure import effect_lines
    from runner.text import clean

    shown = clean(str(path))
    cure = f"Read it (disttui validate {shown}); then copy it to a folder of yours{option}."
    _ask(f"{shown}: {why}", effect_lines(profile), cure)


def ask_about_rerun(run: str, profile: Profile) -> None:
    """Show what the profile of a run that was found on a host has run, and ask. Raises InputError."""
    from runner.ids import short
    from runner.profile.disclosure import foreign_lines

    cure = f"Read it (disttui show {short(run)}); then add --trust-profile."
    _ask(f"{short(run)}: its profile is the word of the host that it was found on", foreign_lines(profile), cure)


def _ask(what: str, shown: Iterable[tuple[str, str]], cure: str) -> None:
    from runner.transport.prompts import confirm

    lines = [f"  {key}: {text}" for key, text in shown]
    answer = confirm("\n".join([f"{what}. It has this run with your login:", *lines, "Go on?"]))
    if not answer:
        raise InputError(f"{what}: it is not used{' without a yes' if answer is None else ''}", cure)
