"""The command that prints the story of a run."""

from __future__ import annotations

import json
from typing import Any

import click

from runner.cli.options import AS_JSON, LOCAL, example
from runner.cli.run_selector import finding, run_options, warn


@click.command(epilog=example("disttui show 2node-7f3a"))
@LOCAL
@AS_JSON
@run_options
def show(local: bool, as_json: bool, **where: Any) -> None:
    """Show the story of RUN: what happened when, and the result.

    With the versions on its hosts, and the profile as it was run.
    """
    from runner.api.replaying import replay
    from runner.cli.render.run_story import render_run, run_json

    with finding(**where) as (known, viewer):
        found = replay(viewer, known, local=local)
    warn(found.warnings)
    click.echo(json.dumps(run_json(known, found), indent=2) if as_json else "\n".join(render_run(known, found)))
