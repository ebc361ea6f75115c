"""The command that makes one file of a checkpoint's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from runner.cli.options import example
from runner.cli.run_selector import finding, run_options


@click.command(
    epilog=example(
        "disttui weights 2node-7f3a --to model.safetensors",
        "disttui weights results/checkpoints/step-000300-a1 --to model.pt",
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

    RUN may also be the path of a checkpoint here, or of a folder of some, such as `disttui pull` makes; a path has a /
    in it. Neither needs torch on this machine. Of a run the whole checkpoint is fetched, which is about three times as
    large as its weights.
    """
    from runner.api.weights import export_weights, fetch_weights
    from runner.cli.render.pulled import news_line
    from runner.text import clean

    if "/" in run:
        done = export_weights(Path(run).expanduser(), to)
    else:
        with finding(run=run, **where) as (known, viewer):
            done = fetch_weights(viewer, known, to, lambda news: click.echo(news_line(news)))
    click.echo(f"{to}: {done.tensors} tensors, {done.parameters:,} numbers of {clean(str(done.checkpoint))}")
