"""The group of all commands, and those on profiles."""

from __future__ import annotations

from typing import Any

import click

from runner import __version__
from runner.cli import diagnose, ends, hosts, runs
from runner.cli.app import AppGroup, has_terminal, open_app, refuse_for
from runner.cli.options import (
    AS_JSON,
    AS_LINES,
    DETACH,
    complete_profiles,
    example,
    load_profile,
    profile_options,
    read_profile,
    ssh_options,
)
from runner.cli.running import run_profile
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


@cli.command(epilog=example("disttui run 2node --sandbox", "disttui run mine.yaml --set job.args='[--lr, \"1e-3\"]'"))
@profile_options
@DETACH
@AS_LINES
@ssh_options
def run(
    profile: str,
    overrides: tuple[str, ...],
    sandbox: bool,
    trust_profile: bool,
    detach: bool,
    as_json: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
) -> None:
    """Run PROFILE on all its hosts until it has trained.

    PROFILE is a file, or the name of a saved profile. Standard output carries the ranks' lines, standard error
    disttui's own words. Ctrl-C stops the whole gang, a second Ctrl-C kills it; when the terminal is closed the run
    goes on.
    """
    from runner.profile.library import find

    path = str(find(profile))
    loaded = load_profile(path, overrides, trusted=trust_profile)
    code = run_profile(
        loaded,
        path,
        sandbox=sandbox,
        ssh_config=ssh_config,
        accept_new=accept_new_host_keys,
        as_json=as_json,
        detach=detach,
    )
    raise SystemExit(code)


@cli.command(epilog=example("disttui plan mine.yaml", "disttui plan 2x8gpu --set hosts='[box1, alice@box2:2222]'"))
@profile_options
@AS_JSON
@ssh_options
def plan(
    profile: str,
    overrides: tuple[str, ...],
    sandbox: bool,
    trust_profile: bool,
    as_json: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
) -> None:
    """Show what PROFILE would run where, and why; start nothing.

    The commands are exact: copied to the hosts and started by hand, they train. What PROFILE has run besides, on which
    host, and the secrets it sends there are listed. Its `activate` lines are run on the hosts, to find out which Python
    they lead to; standard error says so. Exit code 3 when a check found something that forbids the start.
    """
    from runner.cli.planning import show_plan

    loaded = load_profile(profile, overrides, trusted=trust_profile)
    text, code = show_plan(loaded, sandbox, ssh_config, accept_new_host_keys, as_json=as_json)
    click.echo(text)
    raise SystemExit(code)


@cli.command(epilog=example("disttui validate mine.yaml 2node"))
@click.argument("profiles", nargs=-1, required=True, metavar="PROFILE...", shell_complete=complete_profiles)
def validate(profiles: tuple[str, ...]) -> None:
    """Check each PROFILE, and show what it runs, without any host.

    Every error is told, with its line and column. Exit code 2 when there is one.
    """
    from runner.profile.disclosure import effect_lines
    from runner.profile.trust import doubt
    from runner.text import clean, clean_lines

    code = 0
    for name in profiles:
        try:
            path, profile, status = read_profile(name)
        except InputError as error:
            code = error.exit_code
            click.echo(clean_lines(str(error)), err=True)
        else:
            count = len(profile.hosts)
            click.echo(f"{clean(name)}: good ({count} host{'s' if count != 1 else ''})")
            for key, text in effect_lines(profile):
                click.echo(f"  {key}: {text}")
            if why := doubt(path, status):
                click.echo(f"  ▲ {clean(why)}: it is used only after a yes, or with --trust-profile")
    raise SystemExit(code)


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
    click.echo(found(cli, {}, "disttui", "_DISTTUI_COMPLETE").source())


@cli.command()
def bytegpt() -> None:
    """List the arguments of the built-in job, for job.args."""
    from runner.train.options import help_text

    click.echo(help_text())


for _command in (
    *(runs.ps, runs.attach, runs.replay, runs.logs, runs.show, runs.metrics),
    diagnose.diagnose,
    *(ends.stop, ends.rerun, ends.forget, ends.gc, ends.pull),
    *(hosts.probe, hosts.top, hosts.orphans),
):
    cli.add_command(_command)
