"""`disttui show` and `disttui metrics`: the story and the figures of a run."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from typing import Any

from runner.cli.render.run_story import render_run, run_json
from runner.runs.history import KnownRun, mirror_of
from runner.runs.remote import missing, reach, sync
from runner.runs.replay import Replay, replay
from runner.text import clean
from runner.transport import Connector

LIMIT = 5.0
"""Seconds that hosts may take to be reached before what is held here is shown without them."""


def show(run: KnownRun, connector: Connector | None, *, as_json: bool = False) -> tuple[str, list[str]]:
    """The run's story as text, and warnings. Without a connector only what is held here is told."""
    found, warnings = _replayed(run, connector)
    if as_json:
        return json.dumps(run_json(run, found), indent=2), warnings
    return "\n".join(render_run(run, found)), warnings


def metrics(run: KnownRun, connector: Connector | None, *, as_csv: bool = False) -> tuple[str, list[str]]:
    """Every metric of every rank as CSV or as JSON lines, and warnings."""
    found, warnings = _replayed(run, connector)
    rows = [
        _row({"host": host, "attempt": attempt, "rank": rank}, record) for host, attempt, rank, record in found.metrics
    ]
    if not as_csv:
        return "\n".join(json.dumps(row) for row in rows), warnings
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n", restval="")
    writer.writerow({name: clean(name) for name in names})
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue().rstrip("\n"), warnings


def _replayed(run: KnownRun, connector: Connector | None) -> tuple[Replay, list[str]]:
    warnings: list[str] = []
    with mirror_of(run) as folder:
        nodes = missing(run, folder) if connector and not (run.sandbox or run.problem) else []
        if connector and nodes:
            with reach(run, connector, nodes, LIMIT) as reached:
                warnings += [f"{error.sentence}; told is what is held here" for error in reached.errors.values()]
                warnings += sync(run, folder, reached)
        # Another viewer of this machine holds the mirror and keeps it fresh: without hosts, its files are the best.
        source = run.folder if not nodes else folder
        found = replay(run, source)
    return found, [*warnings, *found.warnings]


def _row(ours: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Ours first, and whatever a script has written under the same names left out."""
    return {**ours, **record, **ours}


def _cell(value: object) -> object:
    if isinstance(value, str):
        # A cell that begins like this is a formula to a spreadsheet.
        text = clean(value)
        return f"'{text}" if text[:1] in ("=", "+", "-", "@") and not _is_number(text) else text
    return value


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False
