"""The table of runs: one line each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from disttui.runner.formatting import duration, figure, fit, number, table
from disttui.runner.ids import short
from disttui.runner.render.status import GLYPHS
from disttui.runner.render.waiting import Explain, dropped_words, waiting_words
from disttui.runner.runs.summary import cause_text
from disttui.runner.text import clean

Row = Mapping[str, object]
"""A run's summary (docs/formats.md), with `note`."""


def render_runs(rows: Sequence[Row], width: int | None = 80) -> str:
    """The table of summaries; a row's note follows it, cut to fit.

    Args:
        width: None: nothing is cut, and all hosts are named.
    """
    if not rows:
        return "no runs. Start one: disttui run PROFILE"
    columns = [*_COLUMNS, ("hosts", "<", _hosts if width is not None else lambda row: ", ".join(_names(row)))]
    ids = [clean(str(row.get("run"))) for row in rows]
    cells = [(short(run, ids), *(cell(row) for _, _, cell in columns)) for row, run in zip(rows, ids, strict=True)]
    head = [("id", "<"), *((title, side) for title, side, _ in columns)]
    room = max(width or 0, *map(len, table(head, cells).split("\n")))
    noted = [(*one, f"({note})" if (note := _note(row)) else "") for one, row in zip(cells, rows, strict=True)]
    lost = [(one[0], str(row["dropped"])) for one, row in zip(cells, rows, strict=True) if row.get("dropped")]
    text = table([*head, ("", "<")], noted)
    lines = [text if width is None else fit(text, room)]
    return "\n".join([*lines, *(f"{run}: {dropped_words(run, why)}" for run, why in lost)])


def closing_line(row: Row, again: str) -> str:
    """The line about a run that remains in the terminal after the app: `● 2node-7f3a running, step 5/30`.

    Args:
        again: The command that opens it again, without the run.
    """
    run, cause = short(str(row.get("run"))), cause_text(row) if row.get("state") in ("failed", "lost") else ""
    glyph, _, state = _state(row).partition(" ")
    step = "" if row.get("step") is None else f", step {_step(row)}"
    return f"{glyph} {run} {state}{step}{f': {cause}' if cause else ''}\n  → disttui {again} {run}"


def runs_data(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Summaries for JSON; of failed runs with the cause, if known, and where to read more."""
    return [{**row, "explain": _explain(row)} for row in rows]


def _explain(row: Row) -> Explain | None:
    problem, run = str(row.get("problem") or ""), short(str(row.get("run")))
    if row.get("state") not in ("failed", "lost") and not problem:
        return None
    cure = str(row.get("cure") or "") or None
    cause = problem or cause_text(row) or None
    return {"cause": cause, "cure": cure, "evidence": None, "next": f"disttui diagnose {run}"}


def _note(row: Row) -> str:
    if row.get("state") == "queued" and not row.get("note"):
        return waiting_words(str(row.get("waits") or ""), str(row.get("start") or ""))
    return clean(str(row.get("note") or ""))


def _state(row: Row) -> str:
    state = clean(str(row.get("state") or "unknown"))
    return f"{GLYPHS.get(state, '◌')} {state}"


def _age(row: Row) -> str:
    started = number(row.get("started"))
    return duration(time.time() - started) if started else "-"


def _step(row: Row) -> str:
    step, steps = number(row.get("step")), number(row.get("steps"))
    return "-" if step is None else f"{step:,.0f}" + (f"/{steps:,.0f}" if steps else "")


def _names(row: Row) -> list[str]:
    hosts = row.get("hosts")
    return [clean(str(host)) for host in hosts] if isinstance(hosts, list) else ["-"]


def _hosts(row: Row) -> str:
    names = _names(row)
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


_COLUMNS: Sequence[tuple[str, str, Callable[[Row], str]]] = (
    ("profile", "<", lambda row: clean(str(row.get("name") or "-"))),
    ("by", "<", lambda row: clean(str(row.get("by") or "-"))),
    ("state", "<", _state),
    ("age", ">", _age),
    ("step", ">", _step),
    ("loss", ">", lambda row: figure(row.get("loss")) or "-"),
)
"""The columns between the id, which is shortened to fit, and the hosts: title, side, cell."""
