"""The table of runs: one line each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from runner.formatting import duration, figure, number
from runner.ids import short
from runner.render.slurm import waiting_words
from runner.render.status import GLYPHS
from runner.render.waiting import dropped_words
from runner.text import clean

Row = Mapping[str, object]
"""A run's summary (docs/formats.md), with `note`."""


class _Column(NamedTuple):
    title: str
    cell: Callable[[Row], str]
    right: bool = False


def render_runs(rows: Sequence[Row]) -> str:
    """The table of summaries; `note` of a row stands behind it."""
    if not rows:
        return "no runs. Start one: disttui run PROFILE"
    ids = [clean(str(row.get("run"))) for row in rows]
    table = [
        ("id", *(column.title for column in _COLUMNS)),
        *((short(run, ids), *(column.cell(row) for column in _COLUMNS)) for row, run in zip(rows, ids, strict=True)),
    ]
    right = (False, *(column.right for column in _COLUMNS))
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    lines = []
    for index, cells in enumerate(table):
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for to_right, cell, width in zip(right, cells, widths, strict=True)
        ]
        note = _note(rows[index - 1], cells[0]) if index else ""
        lines.append("  ".join([*padded, f"({note})" if note else ""]).rstrip())
    return "\n".join(lines)


def _note(row: Row, run: str) -> str:
    if row.get("state") == "queued" and not row.get("note"):
        return waiting_words(str(row.get("waits") or ""), str(row.get("start") or ""))
    if row.get("dropped") and not row.get("note"):
        return dropped_words(run, str(row["dropped"]))
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


def _loss(row: Row) -> str:
    return figure(row.get("loss")) or "-"


def _hosts(row: Row) -> str:
    hosts = row.get("hosts")
    if not isinstance(hosts, list):
        return "-"
    names = [clean(str(host)) for host in hosts]
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


_COLUMNS = (
    _Column("profile", lambda row: clean(str(row.get("name") or "-"))),
    _Column("by", lambda row: clean(str(row.get("by") or "-"))),
    _Column("state", _state),
    _Column("age", _age, right=True),
    _Column("step", _step, right=True),
    _Column("loss", _loss, right=True),
    _Column("hosts", _hosts),
)
"""The columns after the id, which is as short as the table allows."""
