"""The command that explains a run."""

from __future__ import annotations

import json
from typing import Any

import click

from runner.cli.options import example
from runner.cli.run_selector import finding, run_options, warn


@click.command(epilog=example("disttui diagnose 2node-7f3a"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text, with the stacks of all ranks.")
@run_options
def diagnose(as_json: bool, **where: Any) -> None:
    """Tell why RUN has failed, or what it is waiting for right now.

    A run that lives is asked for the stack and the flight recorder of every rank, whatever script it runs; that
    changes nothing in it.
    """
    from runner.api.diagnosing import diagnose as ask
    from runner.render.diagnosis import diagnosis_data, diagnosis_text

    with finding(**where) as (known, viewer):
        found = ask(viewer, known, diagnosis_text)
    warn(found.warnings)
    click.echo(json.dumps(diagnosis_data(found), indent=2) if as_json else diagnosis_text(found))
