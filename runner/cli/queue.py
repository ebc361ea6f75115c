"""The commands for runs that wait for what others have leased."""

from __future__ import annotations

import json
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem

from runner.cli.options import AS_JSON, complete_hosts, example, ssh_options
from runner.cli.run_selector import finding, run_options, warn
from runner.errors import HostError, InputError
from runner.ids import short
from runner.text import clean

_SHORT = "disttui.queue.short"
"""In a context's `meta`: no command was named."""


class _Queue(click.Group):
    """Lists where no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and ctx.resilient_parsing:  # completion: a command, or a host
            return super().parse_args(ctx, args)
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
            ctx.meta[_SHORT] = True
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands, and the hosts that may stand in their place."""
        return [*super().shell_complete(ctx, incomplete), *complete_hosts(ctx, self, incomplete)]


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
    disttui stop takes one of yours out of the line. Below them are runs of yours that ended before their turn: their
    host was rebooted, for example. Jobs of Slurm are not here: disttui ps shows them, with Slurm's reason. Without
    HOST, the hosts of disttui who. Exit code 3 when a host could not be asked.
    """
    from runner.api.leasing import dropped
    from runner.api.leasing import queue as in_line
    from runner.api.leasing import who as ask
    from runner.cli.viewing import viewing
    from runner.render.leases import queue_json, render_queue
    from runner.render.waiting import dropped_words

    if hosts and click.get_current_context().meta.get(_SHORT):
        _refuse_command(clean(hosts[0]))
    with viewing(ssh_config, accept_new_host_keys) as viewer:
        found = ask(viewer, hosts, gpus=False)
        lost = dropped(viewer, found.places)
    runs = in_line(found.hosts)
    if as_json:
        errors = {error.host: error.sentence for error in found.problems if isinstance(error, HostError)}
        gone = {row["run"]: row["dropped"] for row in lost}
        click.echo(json.dumps({"runs": queue_json(runs), "dropped": gone, "errors": errors}, indent=2))
    else:
        warn([error.sentence for error in found.problems])
        click.echo(render_queue(runs))
        for row in lost:
            click.echo(f"{short(row['run'])}: {dropped_words(short(row['run']), row['dropped'])}")
    raise SystemExit(3 if found.problems else 0)


def _refuse_command(host: str) -> None:
    """Refuse a first host that was most likely meant as a command: what follows it would be hosts, too."""
    from runner.profile.problems import near

    if meant := near(host, list(queue.commands)):
        what = f"queue: {host} is a command, behind options" if host == meant else f"queue: {host} is no command"
        raise InputError(what, f"disttui queue {meant}; or, for a host of this name: disttui queue list {host}")


@queue.command(epilog=example("disttui queue move 2node-7f3a --first", "disttui queue move 2node-7f3a --priority 10"))
@click.option("--first", is_flag=True, help="Before all that wait on its hosts.")
@click.option("--last", is_flag=True, help="Behind all that wait on its hosts.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Before those of a lower priority.")
@run_options
def move(first: bool, last: bool, priority: int | None, **where: Any) -> None:
    """Give RUN, which is yours and waits, another place in the line.

    --first and --last take the priority of those that they pass. All its hosts must be reached. Exit code 1 where
    another run, whose priority and time cannot be passed, stays before it with --first, or behind it with --last.
    """
    from runner.api.leasing import move as move_run
    from runner.render.leases import moved_line

    if first + last + (priority is not None) != 1:
        raise InputError("queue move needs one new place for RUN", "Give one of --first, --last and --priority.")
    to: Literal["first", "last"] | None = "first" if first else "last" if last else None
    with finding(**where) as (known, viewer):
        moved = move_run(viewer, known, to=to, priority=priority)
    click.echo(moved_line(known.run, moved, to))
    raise SystemExit(1 if (first and moved.ahead) or (last and moved.behind) else 0)
