"""The group of all commands."""

from __future__ import annotations

import click

from disttui.runner import __version__
from disttui.runner.cli.app import AppGroup, Commands, has_terminal, open_app, refuse_for
from disttui.runner.cli.global_options import GLOBAL_OPTIONS, emit, wants_json
from disttui.runner.cli.options import example

_EPILOG = """\b
disttui alone opens the app, disttui PROFILE or SCRIPT.py its wizard. To begin:
  disttui run 2node --sandbox        try it on this machine
  disttui probe node1 node2          see what your hosts have
  disttui run 2node.yaml             train; --detach: in the background

\b
Exit codes: 0 trained · 1 training failed or a host was lost · 2 bad input ·
3 a host cannot be used, or a check failed · 130 stopped · 141 output closed.
"""

_COMMANDS = {
    "attach": "attach", "check": "check", "diagnose": "show", "exec": "exec", "library": "library",
    "logs": "logs", "mcp": "mcp", "notify": "notify", "probe": "probe", "ps": "ps", "rerun": "run", "run": "run",
    "shell": "exec", "skill": "mcp", "stop": "ending", "sweep": "sweep", "top": "top", "wait": "attach",
    "watch": "notify",
}  # fmt: skip
"""Name → the module here that has it; those below are beside."""
_PROFILE = {"validate": "plan", "plan": "plan", "import": "interop", "export": "interop"}
_RUNS = {
    "show": "show", "diff": "show", "metrics": "metrics", "replay": "show", "pull": "pull", "weights": "pull",
    "forget": "ending", "gc": "ending", "orphans": "orphans",
}  # fmt: skip
_LEASE = {"add": "lease", "release": "lease", "list": "lease", "queue": "lease", "move": "lease"}


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
    their output and metrics, and leaves nothing behind. Hosts need an SSH login and a Python with torch.
    """
    if ctx.invoked_subcommand is None:
        if not (has_terminal() or wants_json()):
            click.echo(ctx.get_help())
        open_app("The commands above do without: disttui ps, disttui run PROFILE, …", read_only=read_only)
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
    script = found(cli, {}, "disttui", "_DISTTUI_COMPLETE").source()
    emit({"script": script}, script)


class _Ordered(click.Group):
    """Lists its commands in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return list(self.commands)


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
