"""The commands that show and compare runs: `runs show`, `runs replay`, `runs diff` and `diagnose`."""

from __future__ import annotations

import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

import disttui
from disttui.runner.cli.app import open_app
from disttui.runner.cli.global_options import emit
from disttui.runner.cli.options import LOCAL, example, paths, viewing
from disttui.runner.cli.run_selector import complete_runs, finding, finding_all, run_options, runs_options, warn
from disttui.runner.formatting import count
from disttui.runner.text import clean_lines


@click.command(epilog=example("disttui runs show 2node-7f3a", "disttui runs show @latest"))
@LOCAL
@click.option("--code", is_flag=True, help="List the files of their code instead, as job.sync sent them.")
@click.option("--file", "path", metavar="PATH", help="Print this file of the code of RUN instead.")
@runs_options
def show(local: bool, code: bool, path: str | None, runs: tuple[str, ...], mine: bool, **where: Any) -> None:
    """Show the story of runs: what happened when, and the result.

    With the versions on their hosts, and the profile as it was run. RUN is an id, the name of a sweep, @latest or
    @failed; the JSON of several runs is a list.
    """
    from disttui.runner.api.carrying import code_file, code_files
    from disttui.runner.cli.render.run_story import render_run, run_json

    with finding_all(runs, mine=mine, **where) as (chosen, viewer):
        if path is not None:
            data = code_file(chosen[0], path)
            on_terminal = sys.stdout.isatty()  # a pipe gets the file byte for byte
            if on_terminal:
                click.echo(clean_lines(data.decode("utf-8", "replace").expandtabs(), guesses=False))
            else:
                click.echo(data, nl=False)
            return
        if code:
            files = [code_files(known) for known in chosen]
            emit(
                [{"path": name, "size": size, "sha256": sha256} for one in files for name, size, sha256 in one],
                "\n".join(f"{count(size):>7}B  {name}" for one in files for name, size, _ in one),
            )
            return
        found = [(known, disttui.replay(viewer, known, local=local)) for known in chosen]
    warn(line for _, one in found for line in one.warnings)
    stories = [run_json(known, one) for known, one in found]
    emit(
        stories if len(stories) > 1 else stories[0],
        "\n\n".join("\n".join(render_run(known, one)) for known, one in found),
    )


def _complete_replays(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    recorded = [CompletionItem("example")] if "example".startswith(incomplete) else []
    return [paths("dir", incomplete), *complete_runs(ctx, param, incomplete), *recorded]


@click.command(epilog=example("disttui runs replay example"))
@click.argument("run", metavar="RUN", shell_complete=_complete_replays)
def replay(run: str) -> None:
    """Play RUN back in the dashboard, with a cursor in time.

    RUN is an id or its beginning, a folder that mirrors a run, or `example`: a recorded one to try the app with.
    """
    instead = "" if run == "example" else f"Without one: disttui runs show {run}"
    open_app(instead, ("replay", (run, run == "example")))


@click.command(epilog=example("disttui runs diff 2node-7f3a 2node-51c0"))
@click.argument("one", metavar="RUN1", shell_complete=complete_runs)
@click.argument("other", metavar="RUN2", shell_complete=complete_runs)
@LOCAL
def diff(one: str, other: str, local: bool) -> None:
    """Compare two runs.

    By their profiles, commands, code, versions, hosts and results. Of the code: the commits, and how what `job.sync`
    sent differs file by file, else the uncommitted changes. Of the hosts: hardware and systems, not their load.
    """
    from disttui.runner.cli.render.run_story import comparison_json, render_comparison

    with viewing() as viewer:
        found = disttui.compare(viewer, disttui.find_run(viewer, one), disttui.find_run(viewer, other), local=local)
    emit(comparison_json(found), "\n".join(render_comparison(found)))


@click.command(epilog=example("disttui diagnose 2node-7f3a"))
@run_options
def diagnose(**where: Any) -> None:
    """Explain why RUN failed or what it is waiting for.

    A run that lives is asked for the stack and the flight recorder of every rank, whatever script it runs; that
    changes nothing in it.
    """
    from disttui.runner.render.diagnosis import diagnosis_data, diagnosis_text

    with finding(**where) as (known, viewer):
        found = disttui.diagnose(viewer, known, diagnosis_text)
    warn(found.warnings)
    emit(diagnosis_data(found), diagnosis_text(found))
