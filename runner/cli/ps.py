"""The command that lists runs."""

from __future__ import annotations

import sys
from shutil import get_terminal_size

import click

import disttui
from disttui.runner.cli.options import LOCAL, complete_hosts, emit, example, viewing
from disttui.runner.cli.run_selector import check_run_dir, warn, warn_of
from disttui.runner.errors import InputError
from disttui.runner.formatting import amount
from disttui.runner.protocol.names import RUN_DIR
from disttui.runner.runs.summary import STATES


@click.command(epilog=example("disttui ps --state running --user alice", "disttui ps --host box1 --json"))
@click.option("--name", default="", metavar="TEXT", help="Only runs of profiles whose name contains this.")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    type=click.Choice(STATES),
    help=f"Only runs in this state: {', '.join(STATES)}.",
)
@click.option("--sweep", metavar="SWEEP", help="Only runs of this sweep.")
@click.option("--user", default="", metavar="USER", help="Only runs that this user started.")
@click.option("--since", metavar="WHEN", help="Only runs started since: 90s, 10m, 2h, 3d ago, or a date.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    shell_complete=complete_hosts,
    help="Only runs on this host, started by any user.",
)
@click.option(
    "--run-dir",
    metavar="FOLDER",
    default=RUN_DIR,
    show_default=True,
    callback=check_run_dir,
    help="The folder of runs on --host.",
)
@LOCAL
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="List at most this many runs.")
@click.option("--after", metavar="RUN", help="Continue after RUN, the last one listed.")
def ps(
    *,
    name: str,
    states: tuple[str, ...],
    sweep: str | None,
    user: str,
    since: str | None,
    hosts: tuple[str, ...],
    run_dir: str,
    local: bool,
    limit: int,
    after: str | None,
) -> None:
    """List known runs, and those on given hosts.

    Hosts have 3 seconds to report the state of their runs, those of --host 15; outdated rows are marked. The loss is
    rank 0's. Private runs of other users show only name, owner and state. Exit code 3 if a host of --host could not be
    asked.
    """
    from disttui.runner.api.finding import sweep_runs
    from disttui.runner.cli.logs import parse_since
    from disttui.runner.cli.render.runs import render_runs, runs_data

    if local and hosts:
        raise InputError("--local and --host exclude each other", "Omit one of them.")
    with viewing(without_config=True) as viewer:
        swept = None if sweep is None else sweep_runs(viewer, sweep)
        wanted = disttui.RunFilter(name, states, swept, user, parse_since(since) if since else 0.0)
        listed = disttui.list_runs(viewer, hosts, local=local, run_dir=run_dir, wanted=wanted)
    warn(listed.problems)
    warn_of(listed.silent)
    rows = listed.rows
    if after is not None:
        place = next((at for at, row in enumerate(rows, 1) if row["run"].startswith(after)), None)
        if place is None:
            raise InputError(f"--after {after!r}: no such run in the list", "Give the last run listed.")
        rows = rows[place:]
    if (more := len(rows) - limit) > 0:
        rows = rows[:limit]
        warn([f"{amount(more, 'more run')}: add --after {rows[-1]['run']}"])
    nothing = not rows and (hosts or after or wanted != disttui.RunFilter())
    width = get_terminal_size().columns if sys.stdout.isatty() else None
    emit(runs_data(rows), "no runs match" if nothing else render_runs(rows, width))
    raise SystemExit(3 if listed.silent else 0)
