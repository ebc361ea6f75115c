"""A sweep's runs and results as a table."""

from __future__ import annotations

from disttui.runner.api.sweeping import Sweep
from disttui.runner.formatting import figure
from disttui.runner.ids import short
from disttui.runner.render.tables import table
from disttui.runner.text import clean


def render_sweep(sweep: Sweep) -> str:
    """A line for each run: its values, its state, its last step and loss."""
    keys = list(sweep.runs[0].values) if sweep.runs else []
    columns = [("RUN", "<"), *((clean(key.removeprefix("job.args.")), ">") for key in keys)]
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
            )
        )
    return table((*columns, ("STATE", "<"), ("STEP", ">"), ("LOSS", ">")), rows)
