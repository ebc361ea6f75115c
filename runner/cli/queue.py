"""The commands for runs that wait for what others have leased."""

from __future__ import annotations

import json
from typing import Any, Literal

import click

from runner.cli.options import AS_JSON, complete_hosts, example, ssh_options
from runner.cli.run_selector import finding, run_options, warn
from runner.errors import HostError, InputError


class _Queue(click.Group):
    """Lists where no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Queue,
    epilog=example("disttui queue", "disttui queue box1 --json", "disttui queue move 2node-7f3a --first"),
)
def queue() -> None:
    """List the runs that wait on hosts, or move one of yours.

    disttui queue HOST... is short for disttui queue list HOST... Jobs of Slurm are not here: see disttui ps.
    """


@queue.command("list", epilog=example("disttui queue", "disttui queue box1 box2"))
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@AS_JSON
@ssh_options
def list_queue(hosts: tuple[str, ...], as_json: bool, ssh_config: str | None, accept_new_host_keys: bool) -> None:
    """List the runs of all users that wait on each HOST.

    In their order, and what each waits for, as far as that is known. They were started by disttui run --when-free;
    disttui stop takes one of yours out of the line. Jobs of Slurm are not here: disttui ps shows them, with Slurm's
    reason. Without HOST, the hosts of disttui who. Exit code 3 when a host could not be asked.
    """
    from runner.api.leasing import queue as in_line
    from runner.api.leasing import who as ask
    from runner.cli.viewing import viewing
    from runner.render.leases import queue_json, render_queue

    with viewing(ssh_config, accept_new_host_keys) as viewer:
        found = ask(viewer, hosts, gpus=False)
    runs = in_line(found.hosts)
    if as_json:
        errors = {error.host: error.sentence for error in found.problems if isinstance(error, HostError)}
        click.echo(json.dumps({"runs": queue_json(runs), "errors": errors}, indent=2))
    else:
        warn([error.sentence for error in found.problems])
        click.echo(render_queue(runs))
    raise SystemExit(3 if found.problems else 0)


@queue.command(epilog=example("disttui queue move 2node-7f3a --first", "disttui queue move 2node-7f3a --priority 10"))
@click.option("--first", "to", flag_value="first", help="Before all that wait on its hosts.")
@click.option("--last", "to", flag_value="last", help="Behind all that wait on its hosts.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Before those of a lower priority.")
@run_options
def move(to: Literal["first", "last"] | None, priority: int | None, **where: Any) -> None:
    """Give RUN, which is yours and waits, another place in the line.

    --first and --last take the priority of those that they pass. All its hosts must be reached.
    """
    from runner.api.leasing import move as move_run
    from runner.ids import short

    if (to is None) == (priority is None):
        raise InputError("queue move needs a new place for RUN", "Give one of --first, --last and --priority.")
    with finding(**where) as (known, viewer):
        place = move_run(viewer, known, to=to, priority=priority)
    click.echo(f"{short(known.run)} has another place in the line, with priority {-place.before}: disttui queue")
