"""The command that copies a run's checkpoints and results to this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from runner.cli.options import example
from runner.cli.run_selector import finding, run_options


@click.command(epilog=example("disttui pull 2node-7f3a --to results"))
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), help="Into this folder, by default ./RUN.")
@run_options
def pull(to: Path | None, **where: Any) -> None:
    """Copy the checkpoints and results of RUN to here.

    What was copied before is not copied again.
    """
    from runner.api.pulling import pull as fetch
    from runner.cli.render.pulled import news_line, pulled_lines

    with finding(**where) as (known, viewer):
        into = to or Path(known.run)
        pulled = fetch(viewer, known, into, lambda news: click.echo(news_line(news)))
        for line in pulled_lines(known, pulled, into):
            click.echo(line)
    raise SystemExit(3 if pulled.unreached else 0)
