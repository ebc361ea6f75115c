"""The commands that copy the checkpoints, results and weights of runs to this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import disttui
from disttui.runner.cli.global_options import emit, progress, say
from disttui.runner.cli.options import example
from disttui.runner.cli.run_selector import finding, finding_all, for_each, run_options, runs_options
from disttui.runner.formatting import amount, gibibytes
from disttui.runner.ids import short
from disttui.runner.text import clean


@click.command(epilog=example("disttui runs pull 2node-7f3a --to results"))
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Into this folder, by default ./RUN; of several runs into a folder for each in it.",
)
@click.option("--code", is_flag=True, help="Copy their code instead, as job.sync sent it.")
@runs_options
def pull(to: Path | None, code: bool, runs: tuple[str, ...], mine: bool, **where: Any) -> None:
    """Copy the checkpoints and results of runs to here.

    RUN is an id, the name of a sweep, @latest or @failed. What was copied before is not copied again.
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
    help="The file; its name ends with .safetensors, or with .pt for torch.load.",
)
@run_options
def weights(to: Path, run: str, **where: Any) -> None:
    """Write the weights of RUN's newest checkpoint as one file.

    RUN may also be the path of a checkpoint here, or of a folder of some, such as `disttui runs pull` makes; a path has
    a / in it. Neither needs torch on this machine. Of a run the whole checkpoint is fetched, which is about three times
    as large as its weights.
    """
    if "/" in run:
        done = disttui.export_weights(Path(run).expanduser(), to)
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
            "What a job writes to $DISTTUI_CHECKPOINTS stands there",
            "Name what it writes to its own folder in the profile: job.outputs: [out/]",
        ]
    if not pulled.fetched:
        return [f"{to}: {amount(pulled.offered, 'file')} here already, nothing is new"]
    count = amount(len(pulled.fetched), "file")
    return [f"{to}: {count}, {gibibytes(pulled.bytes)} fetched, checksums are right"]
