"""The command that explains a run."""

from __future__ import annotations

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
    from runner.commands.diagnose import diagnose as told

    with finding(where) as (known, viewer):
        text, warnings = told(known, viewer.connector(known.ssh_config), as_json=as_json)
    warn(warnings)
    click.echo(text)
