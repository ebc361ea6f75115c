"""The command that stops a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runner.cli.options import example
from runner.cli.run_selector import finding, run_options

if TYPE_CHECKING:
    from runner.api.ending import StopAsked
    from runner.api.news import HostNotice


@click.command(epilog=example("disttui stop 2node-7f3a"))
@click.option("--now", is_flag=True, help="Kill at once, without the grace that lets ranks save their work.")
@run_options
def stop(now: bool, **where: Any) -> None:
    """Stop RUN on all its hosts, and wait until nothing is left.

    One host that is reached is enough: it hands the stop on. A run that has ended already is left as it is.
    """
    from runner.api.ending import StopAsked
    from runner.api.ending import stop as stop_run
    from runner.render.stopping import stopped_lines

    asked: tuple[str, ...] = ()

    def tell(news: HostNotice | StopAsked) -> None:
        nonlocal asked
        if isinstance(news, StopAsked):
            asked = news.hosts
        else:
            click.echo(f"{news.host}: {news.text}")

    with finding(**where) as (known, viewer):
        try:
            stopped = stop_run(viewer, known, now=now, tell=tell)
        except KeyboardInterrupt:
            if asked:
                click.echo(f"the stop has gone out to {', '.join(asked)}, and goes on without this command")
            raise
    for line in stopped_lines(stopped):
        click.echo(line)
    raise SystemExit(0 if stopped.complete else 1)
