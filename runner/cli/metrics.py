"""The command that prints metrics of a run or a log, or sends them to trackers."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import disttui
from disttui.runner.cli.options import LOCAL, emit_line, example, wants_json
from disttui.runner.cli.run_selector import finding, run_options, warn
from disttui.runner.errors import InputError
from disttui.runner.formatting import amount
from disttui.runner.text import clean

if TYPE_CHECKING:
    from disttui.runner.trackers import Target

_PROJECT = "disttui"
_SHOWN = 20
"""Most lines with metrics that are shown one by one, as text."""
_ADVICE = {
    "line": "Give --pattern an expression whose named groups are metrics, such as 'step=(?P<step>\\d+)'.",
    "sample": "disttui reads numbers with a name and a step: docs/metrics.md.",
}
"""The cure if no metric was found."""


@click.command(
    epilog=example(
        "disttui runs metrics 2node-7f3a --csv > 2node.csv",
        "disttui runs metrics 2node-7f3a --tensorboard ~/tb",
        "disttui runs metrics 2node-7f3a --to wandb --project gpt",
        "disttui runs metrics --try train.log --pattern 'step=(?P<step>\\d+)'",
    )
)
@LOCAL
@click.option("--csv", "as_csv", is_flag=True, help="Print one table with a column per metric.")
@click.option(
    "--tensorboard",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write event files for TensorBoard, into a folder named after RUN below FOLDER.",
)
@click.option(
    "--to",
    type=click.Choice(["wandb", "trackio", "mlflow"]),
    help="Send them to a tracker, with its package and your login.",
)
@click.option("--project", metavar="NAME", help=f"With --to: the project (default: {_PROJECT!r}).")
@click.option(
    "--by-rank", is_flag=True, help="With --tensorboard and --to: also the values of each rank, not only their means."
)
@click.option(
    "--try",
    "tried",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show instead what is read from a log, an event file, a .wandb file or a CSV.",
)
@click.option("--pattern", metavar="REGEX", help="With --try: the expression to use, as metrics.pattern in a profile.")
@partial(run_options, required=False)
def metrics(
    *,
    local: bool,
    as_csv: bool,
    tensorboard: Path | None,
    to: Literal["wandb", "trackio", "mlflow"] | None,
    project: str | None,
    by_rank: bool,
    tried: Path | None,
    pattern: str | None,
    run: str | None,
    **where: Any,
) -> None:
    """Print or send every metric of every rank of RUN."""
    aims = ["--csv"] * as_csv + ["--json"] * wants_json() + ["--tensorboard"] * bool(tensorboard) + ["--to"] * bool(to)
    if len(aims) > 1:
        raise InputError(f"{' and '.join(aims)} exclude each other", "Give one of them.")
    if project is not None and to is None:
        raise InputError("--project needs --to", "Add --to, or omit --project.")
    if by_rank and not (tensorboard or to):
        raise InputError("--by-rank needs --tensorboard or --to", "Omit it: every rank's values are printed anyway.")
    if tried is not None:
        if run is not None or aims not in ([], ["--json"]):
            raise InputError(f"--try reads a file, and excludes RUN and {(aims or ['--csv'])[0]}", "Give one of them.")
        raise SystemExit(_try(tried, pattern))
    if run is None:
        raise click.UsageError("Missing argument 'RUN'.")
    if pattern is not None:
        raise InputError("--pattern needs --try", "A run's pattern is set in its profile: metrics.pattern.")

    where["run"] = run
    with finding(**where) as (known, viewer):
        found = disttui.replay(viewer, known, local=local)
    warn(found.warnings)
    if to is not None:
        raise SystemExit(_send(known, found, to, _PROJECT if project is None else project, by_rank=by_rank))
    if tensorboard is not None:
        raise SystemExit(_send(known, found, "tensorboard", str(tensorboard), by_rank=by_rank))
    if text := _text(found, as_csv=as_csv):
        click.echo(text)


def _send(known: disttui.KnownRun, found: disttui.Replay, target: Target, place: str, *, by_rank: bool) -> int:
    """Send the metrics of a run; returns 0, or 1 without metrics. Raises InputError."""
    from disttui.runner.cli.startup import without_stdin

    attempts = 0
    sending = disttui.send_metrics(known, found, target, place, by_rank=by_rank)
    while True:
        with without_stdin():
            sent = next(sending, None)
        if sent is None:
            break
        attempts += 1
        emit_line(
            asdict(sent),
            f"attempt {sent.attempt}: {amount(sent.metrics, 'metric')}, {amount(sent.steps, 'step')} → {sent.where}",
        )
    if not attempts:
        click.echo(f"{known.run}: no metrics yet, nothing was sent", err=True)
    return 0 if attempts else 1


def _try(path: Path, pattern: str | None) -> int:
    """Show the metrics in a file; returns 0, or 1 without metrics. Raises InputError."""
    trial = disttui.LogTrial(path, pattern)
    for number, record in trial:
        if wants_json():
            click.echo(json.dumps({trial.unit: number, "record": record}))
        elif trial.matched <= _SHOWN:
            click.echo(f"{number:>7}  " + ", ".join(f"{clean(name)} {value}" for name, value in record.items()))
    if not wants_json():
        if trial.matched > _SHOWN:
            click.echo(f"    …    and {amount(trial.matched - _SHOWN, trial.unit)} more")
        for note in trial.notes:
            click.echo(note)
        of = f" of {trial.count:,}" if trial.count is not None else ""
        names = ", ".join(f"{clean(name)} ({times:,})" for name, times in trial.names.most_common(20))
        found = f": {names}" if names else "."
        click.echo(f"{amount(trial.matched, trial.unit)}{of} with metrics{found}")
        if not trial.matched:
            click.echo(_ADVICE[trial.unit])
    return 0 if trial.matched else 1


def _text(found: disttui.Replay, *, as_csv: bool) -> str:
    """Every metric of every rank."""
    rows = found.table()
    if not as_csv:
        return "\n".join(json.dumps(row) for row in rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n", restval="")
    writer.writerow({name: clean(name) for name in names})
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue().rstrip("\n")


def _cell(value: object) -> object:
    if isinstance(value, str):
        # A spreadsheet would treat a cell with this beginning as a formula.
        text = clean(value)
        return f"'{text}" if text[:1] in ("=", "+", "-", "@") and not _is_number(text) else text
    return value


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False
