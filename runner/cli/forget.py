"""The command that removes a run."""

from __future__ import annotations

import os
from typing import Any

import click

from runner.cli.options import example
from runner.cli.run_selector import finding, run_options
from runner.errors import InputError


@click.command(epilog=example("disttui forget 2node-7f3a"))
@click.option("--here", is_flag=True, help="Remove only what is held here; the hosts keep the run.")
@run_options
def forget(here: bool, **where: Any) -> None:
    """Remove RUN, logs and checkpoints too, on its hosts and here.

    Refused while it lives.
    """
    from runner.api.ending import forget as remove
    from runner.api.ending import forget_here
    from runner.render.old import forgotten

    if here:
        if where["host"]:
            raise InputError("--here asks no host, and --host names one", "Leave out one of them.")
        click.echo(f"{forget_here(os.environ, where['run'])}: its mirror is removed")
        return
    with finding(**where) as (known, viewer):
        remove(viewer, known)
        click.echo(forgotten(known))
