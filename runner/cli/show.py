"""The commands that show, compare and fetch runs: `runs show`, `replay`, `diff`, `pull`, `weights`, and `diagnose`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

import disttui
from disttui.runner.cli.app import open_app
from disttui.runner.cli.options import LOCAL, emit, example, paths, progress, say, viewing, wants_json
from disttui.runner.cli.run_selector import (
    complete_runs,
    finding,
    finding_all,
    for_each,
    run_options,
    runs_options,
    warn,
)
from disttui.runner.errors import InputError
from disttui.runner.formatting import amount, count, gibibytes
from disttui.runner.ids import short
from disttui.runner.paths import typed
from disttui.runner.text import clean, clean_lines


@click.command(epilog=example("disttui runs show 2node-7f3a", "disttui runs show @latest"))
@LOCAL
@click.option("--code", is_flag=True, help="List the files that job.sync sent, instead of the story.")
@click.option("--file", "path", metavar="PATH", help="Print this file of RUN's code, instead of the story.")
@runs_options
def show(local: bool, code: bool, path: str | None, runs: tuple[str, ...], mine: bool, **where: Any) -> None:
    """Show the story of runs: what happened when, and the result.

    Also shows the versions on their hosts, and the original profile. RUN is an id, the name of a sweep, @latest or
    @failed; the JSON of several runs is a list.
    """
    from disttui.runner.api.carrying import code_file, code_files
    from disttui.runner.cli.render.run_story import render_run, run_json

    if path is not None and wants_json():
        raise InputError("--file prints the file itself, not JSON", "Omit --json.")
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

    RUN is an id or its beginning, @latest, @failed, a run's mirror folder, or `example`, a recorded run.
    """
    from disttui.runner.runs.registry import folder_of, is_mirror

    if run.startswith("@") and not is_mirror(Path(run)):
        with viewing() as viewer:
            run = disttui.find_run(viewer, run).run
    if run != "example" and not is_mirror(Path(run)):
        folder_of(run, os.environ)
    instead = "" if run == "example" or is_mirror(Path(run)) else f"Without one: disttui runs show {run}"
    open_app(instead, ("replay", (run, run == "example")))


@click.command(epilog=example("disttui runs diff 2node-7f3a 2node-51c0"))
@click.argument("one", metavar="RUN1", shell_complete=complete_runs)
@click.argument("other", metavar="RUN2", shell_complete=complete_runs)
@LOCAL
def diff(one: str, other: str, local: bool) -> None:
    """Compare two runs.

    Compares profiles, commands, code, versions, hosts and results. Code: commits, and the files that `job.sync` sent,
    else uncommitted changes. Hosts: hardware and systems, not load.
    """
    from disttui.runner.cli.render.run_story import comparison_json, render_comparison

    with viewing(without_config=True) as viewer:
        found = disttui.compare(viewer, disttui.find_run(viewer, one), disttui.find_run(viewer, other), local=local)
    emit(comparison_json(found), "\n".join(render_comparison(found)))


@click.command(epilog=example("disttui diagnose 2node-7f3a"))
@run_options
def diagnose(**where: Any) -> None:
    """Explain why RUN failed or what it is waiting for.

    For an active run, reads the stack and flight recorder of every rank, whatever script it runs, without changing it.
    """
    from disttui.runner.render.diagnosis import diagnosis_data, diagnosis_text

    with finding(**where) as (known, viewer):
        found = disttui.diagnose(viewer, known, diagnosis_text)
    warn(found.warnings)
    emit(diagnosis_data(found), diagnosis_text(found))


@click.command(epilog=example("disttui runs pull 2node-7f3a --to results"))
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to copy into (default: ./RUN); several runs get a subfolder each.",
)
@click.option("--code", is_flag=True, help="Copy the code that job.sync sent, instead of the results.")
@runs_options
def pull(to: Path | None, code: bool, runs: tuple[str, ...], mine: bool, **where: Any) -> None:
    """Copy the checkpoints and results of runs here.

    RUN is an id, the name of a sweep, @latest or @failed. Files copied before are skipped.
    """
    from disttui.runner.api.carrying import copy_code
    from disttui.runner.paths import inside

    def fetch(run: disttui.KnownRun) -> tuple[dict[str, object], int]:
        into = Path(run.run) if to is None else to if len(chosen) == 1 else inside(to, run.run)
        if code:
            into = inside(into, "code") if to is None else into
            files = copy_code(run, into, viewer.environ)
            say(f"{short(run.run)}: {amount(files, 'file')} of code in {into}")
            return {"folder": str(into), "files": files}, 0
        pulled = disttui.pull(viewer, run, into, lambda news: progress(news_line(news)))
        say("\n".join(pulled_lines(run, pulled, into)))
        return {"folder": str(into), **pulled_data(pulled)}, 3 if pulled.unreached else 0

    with finding_all(runs, mine=mine, **where) as (chosen, viewer):
        for_each(chosen, fetch)


@click.command(
    epilog=example(
        "disttui runs weights 2node-7f3a --to model.safetensors",
        "disttui runs weights results/checkpoints/step-000300-a1 --to model.pt",
    )
)
@click.option(
    "--to",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file: .safetensors, or .pt for torch.load.",
)
@run_options
def weights(to: Path, run: str, **where: Any) -> None:
    """Write the weights of RUN's newest checkpoint as one file.

    RUN can also be the path of a local checkpoint, or of a folder of checkpoints as `disttui runs pull` makes; a path
    contains a /. This machine needs no torch. Of a run the whole checkpoint is fetched, about three times the size of
    its weights.
    """
    if "/" in run:
        done = disttui.export_weights(typed(run), to)
    else:
        with finding(run=run, **where) as (known, viewer):
            done = disttui.fetch_weights(viewer, known, to, lambda news: progress(news_line(news)))
    emit(
        {"file": str(to), "checkpoint": str(done.checkpoint), "tensors": done.tensors, "parameters": done.parameters},
        f"{to}: {done.tensors} tensors, {done.parameters:,} parameters of {clean(str(done.checkpoint))}",
    )


def news_line(news: disttui.ToFetch | disttui.PulledFile | disttui.HostNotice) -> str:
    """The line for files to be fetched, for a copied file, or for an error of a host."""
    if isinstance(news, disttui.HostNotice):
        return f"{clean(news.host)}: {news.text}"
    if isinstance(news, disttui.ToFetch):
        return f"{clean(news.host)}: {amount(news.files, 'file')} to fetch, {gibibytes(news.size)}"
    return f"{clean(str(news.path))} ({gibibytes(news.size)} from {clean(news.host)})"


def pulled_data(pulled: disttui.Pulled) -> dict[str, object]:
    """The result of a pull for JSON."""
    files = [str(file.path) for file in pulled.fetched]
    return {"files": files, "bytes": pulled.bytes, "offered": pulled.offered, "unreached": list(pulled.unreached)}


def pulled_lines(run: disttui.KnownRun, pulled: disttui.Pulled, to: Path) -> list[str]:
    """The result of a pull."""
    if not pulled.offered:
        looked = ", ".join(map(clean, pulled.looked))
        where = f"{clean(run.run_dir)}/{run.run}/checkpoints"
        return [
            f"{short(run.run)} has nothing to pull: searched {looked} for checkpoints in {where}",
            "pull copies what the job writes to $DISTTUI_CHECKPOINTS",
            "for other files, set job.outputs in the profile, such as [out/]",
        ]
    if not pulled.fetched:
        return [f"{to}: {amount(pulled.offered, 'file')} already here"]
    count = amount(len(pulled.fetched), "file")
    return [f"{to}: {count}, {gibibytes(pulled.bytes)} fetched and verified"]
