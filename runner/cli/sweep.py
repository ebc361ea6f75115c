"""The command that queues a run for each combination of values."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from runner.cli.options import AS_JSON, TRUST, complete_profiles, example, naming_trust, ssh_options
from runner.errors import InputError


@click.command(
    epilog=example(
        "disttui sweep mine.yaml --set job.args.lr=1e-3,3e-4 --set job.args.seed=1,2",
        "disttui sweep --results mine-sweep-7f3a0b12",
    )
)
@click.argument("profile", required=False, shell_complete=complete_profiles)
@click.option("--set", "settings", multiple=True, metavar="KEY=A,B", help="A key's values; job.args.lr is --lr.")
@click.option("--results", metavar="SWEEP", help="Show how the runs of a sweep do; its name may be shortened.")
@TRUST
@AS_JSON
@ssh_options
def sweep(
    profile: str | None,
    settings: tuple[str, ...],
    *,
    results: str | None,
    trust_profile: bool,
    as_json: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
) -> None:
    """Queue PROFILE once for each combination of values.

    Each is a run of its own that starts when its GPUs are free, on the CPU when its hosts are: disttui queue, ps, stop.
    --results prints a table of their values, states and losses.
    """
    from runner.api.sweeping import find_sweep, start_sweep
    from runner.cli.viewing import viewing
    from runner.render.sweep import render_sweep
    from runner.runs.registry import make_folder

    if (profile is None) == (results is None):
        raise InputError("give either PROFILE or --results SWEEP", "See: disttui sweep --help")
    with viewing(ssh_config, accept_new_host_keys) as viewer:
        if results is not None:
            found = find_sweep(viewer, results)
        else:
            assert profile is not None
            make_folder(os.environ)
            with naming_trust():
                found = start_sweep(viewer, profile, settings, trusted=trust_profile)
    click.echo(json.dumps(asdict(found), indent=2) if as_json else render_sweep(found))
    if results is None and not as_json:
        click.echo(f"results: disttui sweep --results {found.name}")
