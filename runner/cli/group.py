"""The group of all commands, and those on profiles."""

from __future__ import annotations

import os
from typing import Any

import click

from runner import __version__
from runner.cli import diagnose, ends, hosts, runs
from runner.cli.app import AppGroup, has_terminal, open_app, refuse_for
from runner.cli.parts import connecting, kept_of, load_profile, profile_options, reaching, ssh_options, starting
from runner.errors import InputError

_EPILOG = """\b
In a terminal, disttui alone opens the app, and disttui PROFILE its wizard on a profile.

\b
Try it without a second machine:
  disttui run 2node --sandbox

\b
With your own hosts (any ssh alias, user@host:port, or `local`):
  disttui probe node1 node2          what each has
  disttui plan 2node.yaml            what would run where, and why
  disttui run 2node.yaml             train; Ctrl-C stops everything, everywhere

\b
Runs go on by themselves, and whoever reaches their hosts can look in:
  disttui run --detach 2node.yaml    start, and leave
  disttui ps                         all runs
  disttui attach 2node-7f3a          look in; the id may be shortened
  disttui replay example             a recorded run, to try the dashboard with

\b
Exit codes: 0 trained · 1 training failed or a host was lost · 2 bad input ·
3 a host cannot be used, or a check failed · 130 stopped.
"""


@click.group(
    cls=AppGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="disttui")
@click.option("--read-only", is_flag=True, help="Of the app: change nothing on hosts or in files.")
@ssh_options
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """Train with PyTorch on several machines over plain SSH.

    disttui takes one profile (YAML), reaches every host, finds out what each has, decides how many processes each
    gets, starts torchrun on all of them as one gang, shows every rank's output and metrics, and leaves nothing behind.
    The hosts need an SSH login and a Python with torch, nothing else.
    """
    if ctx.invoked_subcommand is None:
        if not has_terminal():
            click.echo(ctx.get_help())
        open_app("The commands above do without: disttui ps, disttui run PROFILE, …", **options)
    refuse_for(ctx)


@cli.command()
@profile_options
@ssh_options
@click.option("--detach", is_flag=True, help="Leave the run to itself once all hosts have joined; print its id.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of text.")
def run(
    profile: str,
    overrides: tuple[str, ...],
    sandbox: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
    detach: bool,
    as_json: bool,
) -> None:
    """Run PROFILE on all its hosts until it has trained.

    PROFILE is a file, or the name of a saved profile. Standard output carries the ranks' lines, standard error
    disttui's own words. Ctrl-C stops the whole gang, a second Ctrl-C kills it; when the terminal is closed the run
    goes on.
    """
    from runner import headless

    if detach and sandbox:
        raise InputError("a sandbox lives only as long as its command, so it cannot be left", "Leave out --detach.")
    loaded = load_profile(profile, overrides)
    kept = kept_of(profile, sandbox, ssh_config)
    with starting(), reaching(loaded, sandbox, ssh_config, accept_new_host_keys) as (connector, ready):
        code = headless.run(ready, connector, os.environ, as_json=as_json, detach=detach, kept=kept)
    raise SystemExit(code)


@cli.command()
@profile_options
@ssh_options
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(
    profile: str,
    overrides: tuple[str, ...],
    sandbox: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
    as_json: bool,
) -> None:
    """Show what PROFILE would run on every host, and why, without starting anything.

    The commands are exact: copied to the hosts and started by hand, they train. Exit code 3 when a check found
    something that forbids the start.
    """
    from runner import headless

    loaded = load_profile(profile, overrides)
    with reaching(loaded, sandbox, ssh_config, accept_new_host_keys) as (connector, ready):
        text, code = headless.show_plan(ready, connector, as_json=as_json)
    click.echo(text)
    raise SystemExit(code)


@cli.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@ssh_options
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def probe(hosts: tuple[str, ...], ssh_config: str | None, accept_new_host_keys: bool, as_json: bool) -> None:
    """Show what each HOST has: cores, memory, GPUs and who uses them, network, interpreters with torch.

    HOST is an ssh alias, user@host:port, or `local`. Exit code 3 when a host cannot be reached.
    """
    from runner import headless

    with connecting(ssh_config, accept_new_host_keys) as connector:
        text, code = headless.probe(hosts, connector, as_json=as_json)
    click.echo(text)
    raise SystemExit(code)


@cli.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def validate(files: tuple[str, ...]) -> None:
    """Check profiles without reaching any host: every error of every FILE, with its line and column."""
    from runner.profile import validate_files

    checked = validate_files(files)
    for path, profile, error in checked:
        if profile:
            click.echo(f"{path}: good ({len(profile.hosts)} host{'s' if len(profile.hosts) != 1 else ''})")
        else:
            click.echo(str(error), err=True)
    raise SystemExit(2 if any(one.error for one in checked) else 0)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash: eval "$(disttui completion bash)"     in ~/.bashrc
    zsh:  eval "$(disttui completion zsh)"      in ~/.zshrc
    fish: disttui completion fish | source      in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "disttui", "_DISTTUI_COMPLETE").source())


for _command in (
    *(runs.ps, runs.attach, runs.replay, runs.logs, runs.show, runs.metrics),
    diagnose.diagnose,
    *(ends.stop, ends.rerun, ends.forget, ends.gc, ends.pull),
    *(hosts.top, hosts.orphans),
):
    cli.add_command(_command)
