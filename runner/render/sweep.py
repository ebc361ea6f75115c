"""A sweep's runs and results as a table, and the trials of a search one by one."""

from __future__ import annotations

from collections.abc import Mapping

from runner.api.search_space import parse_goal
from runner.api.searching import best_of
from runner.api.sweeping import Sweep, SweptRun
from runner.formatting import figure
from runner.ids import short
from runner.render.tables import table
from runner.text import clean


def render_sweep(sweep: Sweep) -> str:
    """A line for each run: its values, its state, its last step and loss; of a search its value, and the best run."""
    keys = list(sweep.runs[0].values) if sweep.runs else []
    columns = [("RUN", "<"), *((clean(key.removeprefix("job.args.")), ">") for key in keys)]
    goal = [(clean(sweep.search.goal), ">")] if sweep.search else []
    rows = []
    for one in sweep.runs:
        status = one.status
        step, loss = (status.get("step"), status.get("loss")) if status else (None, None)
        rows.append(
            (
                short(one.run),
                *(clean(one.values.get(key, "-")) for key in keys),
                clean(status.get("state", "-")) if status else "-",
                "-" if step is None else f"{step}",
                figure(loss) or "-",
                *(["-" if one.value is None else f"{one.value:.6g}"] if goal else []),
            )
        )
    lines = [table((*columns, ("STATE", "<"), ("STEP", ">"), ("LOSS", ">"), *goal), rows)]
    lines += [f"{short(one.run)} has no value: {clean(one.why)}" for one in sweep.runs if one.why]
    if best := best_of(sweep):
        lines.append(f"best: {trial_words(sweep, best)}")
    return "\n".join(lines)


def trial_words(sweep: Sweep, one: SweptRun) -> str:
    """`mine-7f3a, loss 1.25, with lr 0.0003, depth 4`."""
    assert sweep.search is not None
    metric = clean(parse_goal(sweep.search.goal).metric)
    result = "" if one.value is None else f", {metric} {one.value:.6g}"
    return f"{short(one.run)}{result}, with {_values(one.values)}"


def progress_line(sweep: Sweep, one: SweptRun) -> str:
    """What has just become of a trial."""
    assert sweep.search is not None and one.trial is not None
    number = f"trial {one.trial + 1}"
    if one.outcome is None:
        return f"{number} is queued: {trial_words(sweep, one)}"
    ended = f"has {one.outcome}" if one.outcome != "stopped" else "was stopped"
    return f"{number} {ended}: {trial_words(sweep, one)}" + (f": {clean(one.why)}" if one.why else "")


def _values(values: Mapping[str, str]) -> str:
    return ", ".join(f"{clean(key.removeprefix('job.args.'))} {clean(value)}" for key, value in values.items())
