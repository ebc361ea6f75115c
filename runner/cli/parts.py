"""What the commands share: options, completion, the way to the hosts. Imports that cost time are made late."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from runner.profile import Profile
    from runner.transport import Connector


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
            help="Use this file as ssh's -F does.  [env: DISTTUI_SSH_CONFIG]",
        ),
    ):
        command = option(command)
    return command


def profile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the profile, and the options that change it."""
    for option in (
        click.option(
            "--sandbox",
            is_flag=True,
            help="Play every host by a throwaway SSH server on this machine's loopback.",
        ),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="KEY=VALUE",
            help="Override a key of the profile, such as job.args='[--steps, \"20\"]' or hosts.0.num_processes=2.",
        ),
        click.argument("profile", metavar="PROFILE", shell_complete=complete_profiles),
    ):
        command = option(command)
    return command


def complete_profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The profiles whose names begin so, and files."""
    from click.shell_completion import CompletionItem

    from runner.library import list_profiles

    known = [CompletionItem(str(item.name)) for item in list_profiles() if str(item.name).startswith(incomplete)]
    return [*known, CompletionItem(incomplete, type="file")]


def load_profile(name: str, overrides: tuple[str, ...]) -> Profile:
    """A profile by its name or path. Raises InputError."""
    from runner.library import find
    from runner.profile import load

    return load(find(name), overrides)


@contextmanager
def connecting(ssh_config: str | None, accept_new: bool) -> Iterator[Connector]:
    """The way to any host, with questions at the terminal."""
    from runner.transport.connector import HostConnector
    from runner.transport.prompts import TerminalPrompts

    prompts = TerminalPrompts()
    connector = HostConnector(ssh_config, prompts, accept_new)
    try:
        yield connector
    finally:
        connector.close()
        prompts.close()


@contextmanager
def reaching(
    profile: Profile, sandbox: bool, ssh_config: str | None, accept_new: bool
) -> Iterator[tuple[Connector, Profile]]:
    """The way to the profile's hosts, and the profile as it is to be run that way."""
    from runner.headless import at_home, sandboxed

    if not sandbox:
        with connecting(ssh_config, accept_new) as connector:
            yield connector, at_home(profile)
        return
    from runner.transport.sandbox import Sandbox

    with Sandbox([host.host for host in profile.hosts]) as played:
        yield played, sandboxed(profile)


@contextmanager
def starting() -> Iterator[None]:
    """Refuse to start a run that could not be kept here, and say of one that is interrupted that it was not started.

    Raises:
        InputError: The folder of all runs cannot be written.
    """
    from runner.run.history import make_folder

    make_folder(os.environ)
    try:
        yield
    except KeyboardInterrupt:
        # Once the start has begun Ctrl-C is a stop, and is not raised.
        raise click.Abort("nothing was started") from None


def kept_of(profile: str, sandbox: bool, ssh_config: str | None) -> dict[str, Any]:
    """What run.json keeps of how a run was asked for."""
    from runner.library import find

    return {
        "source": str(find(profile)),
        "sandbox": sandbox,
        "ssh_config": str(Path(ssh_config).absolute()) if ssh_config else None,
    }
