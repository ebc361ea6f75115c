"""The command that lists runs."""

from __future__ import annotations

import json

import click

from runner.cli.options import AS_JSON, LOCAL, complete_hosts, example, ssh_options
from runner.cli.run_selector import check_run_dir, warn
from runner.errors import InputError
from runner.protocol.names import RUN_DIR


@click.command(epilog=example("disttui ps", "disttui ps --host box1 --json"))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    shell_complete=complete_hosts,
    help="Also all runs of this host, started by any user.",
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
@AS_JSON
@ssh_options
def ps(
    hosts: tuple[str, ...],
    run_dir: str,
    local: bool,
    as_json: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
) -> None:
    """List the runs that are known here, and on given hosts.

    Hosts have 3 seconds to tell how their runs are; rows that are older say so. The loss is that of rank 0. Exit code
    3 when a host given by --host could not be asked.
    """
    from runner.api.listing import list_runs
    from runner.cli.render.runs import render_runs
    from runner.cli.viewing import viewing

    if local and hosts:
        raise InputError("--local asks no host, and --host names one", "Leave out one of them.")
    with viewing(ssh_config, accept_new_host_keys) as viewer:
        listed = list_runs(viewer, hosts, local=local, run_dir=run_dir)
    warn([*listed.problems, *listed.silent])
    click.echo(json.dumps(listed.rows, indent=2) if as_json else render_runs(listed.rows))
    raise SystemExit(3 if listed.silent else 0)
