"""The group of all commands."""

from __future__ import annotations

from typing import Any

import click

from runner import __version__
from runner.cli.app import AppGroup, Commands, has_terminal, open_app, refuse_for
from runner.cli.options import ssh_options

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
Runs go on by themselves, and everybody who reaches their hosts can attach:
  disttui run --detach 2node.yaml    start, and leave
  disttui ps                         all runs
  disttui attach 2node-7f3a          look in; the id may be shortened
  disttui replay example             a recorded run, to try the dashboard with

\b
Hosts that several people use:
  disttui who                        who uses which GPU
  disttui run --when-free 2node.yaml start when its GPUs are free

\b
Exit codes: 0 trained · 1 training failed or a host was lost · 2 bad input ·
3 a host cannot be used, or a check failed · 130 stopped.
"""


_COMMANDS = {
    "attach": "attach", "diagnose": "diagnose", "diff": "diff", "export": "exporting", "forget": "forget", "gc": "gc",
    "import": "importing", "lease": "sharing", "library": "library", "logs": "logs", "metrics": "metrics",
    "orphans": "orphans", "plan": "plan", "probe": "probe", "ps": "ps", "pull": "pull", "queue": "queue",
    "release": "sharing", "replay": "replay", "rerun": "rerun", "run": "run", "show": "show", "stop": "stop",
    "sweep": "sweep", "top": "top", "validate": "validate", "weights": "weights", "who": "sharing",
}  # fmt: skip
"""Name → the module here that has it; those below are beside."""


@click.group(
    cls=AppGroup,
    commands=Commands(_COMMANDS),
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="disttui")
@click.option("--read-only", is_flag=True, help="In the app: change nothing on hosts or in files.")
@ssh_options
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """Train with PyTorch on several machines over plain SSH.

    It takes one profile (YAML), reaches every host, finds out what each has, decides how many processes each
    gets, starts the ranks of all of them together, shows their output and metrics, and leaves nothing behind. The
    hosts need an SSH login and a Python with torch, nothing else.
    """
    if ctx.invoked_subcommand is None:
        if not has_terminal():
            click.echo(ctx.get_help())
        open_app("The commands above do without: disttui ps, disttui run PROFILE, …", **options)
    refuse_for(ctx)


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
