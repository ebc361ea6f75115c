"""Metrics of a run as JSON lines and as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping

from runner.runs.replay import Replay
from runner.text import clean


def metrics_text(found: Replay, *, as_csv: bool) -> str:
    """Every metric of every rank."""
    rows = [
        _row({"host": host, "attempt": attempt, "rank": rank}, record) for host, attempt, rank, record in found.metrics
    ]
    if not as_csv:
        return "\n".join(json.dumps(row) for row in rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n", restval="")
    writer.writerow({name: clean(name) for name in names})
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue().rstrip("\n")


def _row(ours: Mapping[str, object], record: Mapping[str, object]) -> dict[str, object]:
    """Our fields first; a script's values of the same names are left out."""
    return {**ours, **record, **ours}


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
