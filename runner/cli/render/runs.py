"""Runs as a table: one line each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from runner.formatting import duration, number
from runner.ids import short
from runner.render.status import GLYPHS
from runner.text import clean

_COLUMNS = ("id", "profile", "who", "state", "age", "step", "loss", "hosts")
_RIGHT = ("age", "step", "loss")


def render_runs(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of summaries; `note` of a row stands behind it."""
    if not rows:
        return "no runs. Start one: disttui run PROFILE"
    now = time.time()
    ids = [clean(str(row.get("run"))) for row in rows]
    table = [_COLUMNS, *(_cells(row, now, short(run, ids)) for row, run in zip(rows, ids, strict=True))]
    widths = [max(len(line[column]) for line in table) for column in range(len(_COLUMNS))]
    lines = []
    for index, cells in enumerate(table):
        padded = [
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for name, cell, width in zip(_COLUMNS, cells, widths, strict=True)
        ]
        note = clean(str(rows[index - 1].get("note") or "")) if index else ""
        lines.append("  ".join([*padded, f"({note})" if note else ""]).rstrip())
    return "\n".join(lines)


def _cells(row: Mapping[str, Any], now: float, run: str) -> tuple[str, ...]:
    state = clean(str(row.get("state") or "unknown"))
    started = number(row.get("started"))
    step, steps, loss = number(row.get("step")), number(row.get("steps")), number(row.get("loss"))
    hosts = row.get("hosts")
    return (
        run,
        clean(str(row.get("name") or "-")),
        clean(str(row.get("by") or "-")),
        f"{GLYPHS.get(state, '◌')} {state}",
        duration(now - started) if started else "-",
        "-" if step is None else f"{step:,.0f}" + (f"/{steps:,.0f}" if steps else ""),
        "-" if loss is None else f"{loss:.4g}",
        _hosts([clean(str(host)) for host in hosts]) if isinstance(hosts, list) else "-",
    )


def _hosts(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
