"""The command that finds and ends what ended runs have left behind."""

from __future__ import annotations

import json

import click

from runner.cli.options import AS_JSON, complete_hosts, example, ssh_options
from runner.cli.run_selector import complete_runs, warn
from runner.errors import HostError


@click.command(epilog=example("disttui orphans", "disttui orphans box1 --end"))
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@click.option("--end", is_flag=True, help="End them, and say what is left.")
@click.option("--run", metavar="RUN", shell_complete=complete_runs, help="Of this run only.")
@AS_JSON
@ssh_options
def orphans(
    hosts: tuple[str, ...],
    end: bool,
    run: str | None,
    as_json: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
) -> None:
    """List what ended runs have left on each HOST.

    Processes, their ports and the GPU memory they hold. They are known by the tag that every process of a run carries,
    never by name. Without HOST, the hosts of all runs that are known here are asked. Exit code 1 when something could
    not be ended, 3 when a host could not be asked.
    """
    from runner.api.orphan_search import orphans as find
    from runner.cli.render.orphans import render_orphans
    from runner.cli.viewing import viewing

    with viewing(ssh_config, accept_new_host_keys) as viewer:
        found = find(viewer, hosts, end=end, run=run)
    if as_json:
        errors = {error.host: error.sentence for error in found.problems if isinstance(error, HostError)}
        click.echo(json.dumps({"hosts": found.found, "errors": errors}, indent=2))
    else:
        warn([error.sentence for error in found.problems])
        click.echo(render_orphans(found.found, end=end, unasked=len(found.problems), run=run))
    raise SystemExit(1 if end and found.left else 3 if found.problems else 0)
