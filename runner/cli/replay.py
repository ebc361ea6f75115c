"""The command that plays a run back."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from runner.cli.app import open_app
from runner.cli.options import example, paths
from runner.cli.run_selector import complete_runs


def _complete_replays(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    recorded = [CompletionItem("example")] if "example".startswith(incomplete) else []
    return [paths("dir", incomplete), *complete_runs(ctx, param, incomplete), *recorded]


@click.command(epilog=example("disttui replay example"))
@click.argument("run", metavar="RUN", shell_complete=_complete_replays)
def replay(run: str) -> None:
    """Play RUN back in the dashboard, with a cursor in time.

    RUN is an id or its beginning, a folder that mirrors a run, or `example`: a recorded one to try the app with.
    """
    instead = "" if run == "example" else f"Without one: disttui show {run}"
    open_app(instead, ("replay", (run,)))
