"""The command that compares two runs."""

from __future__ import annotations

import json

import click

from runner.cli.options import AS_JSON, LOCAL, example, ssh_options
from runner.cli.run_selector import complete_runs


@click.command(epilog=example("disttui diff 2node-7f3a 2node-51c0"))
@click.argument("one", metavar="RUN1", shell_complete=complete_runs)
@click.argument("other", metavar="RUN2", shell_complete=complete_runs)
@LOCAL
@AS_JSON
@ssh_options
def diff(one: str, other: str, local: bool, as_json: bool, ssh_config: str | None, accept_new_host_keys: bool) -> None:
    """Compare two runs.

    By their profiles, commands, code, versions, hosts and results. Of the code: the commits, and how the uncommitted
    changes differ. Of the hosts: their hardware and systems, not their load.
    """
    from runner.api.comparing import compare
    from runner.api.finding import find_run
    from runner.cli.render.comparison import comparison_json, render_comparison
    from runner.cli.viewing import viewing

    with viewing(ssh_config, accept_new_host_keys) as viewer:
        found = compare(viewer, find_run(viewer, one), find_run(viewer, other), local=local)
    click.echo(json.dumps(comparison_json(found), indent=2) if as_json else "\n".join(render_comparison(found)))
