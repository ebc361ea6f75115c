"""Texts about runs that can be removed, and about removed ones."""

from __future__ import annotations

import time
from collections.abc import Sequence

from runner.api.old import Old
from runner.formatting import amount, duration, gibibytes
from runner.ids import short
from runner.runs.registry import KnownRun


def forgotten(run: KnownRun) -> str:
    """What was removed of a run."""
    if run.sandbox:
        return f"{run.run}: its mirror is removed"
    return f"{short(run.run)}: removed on {', '.join(host.name for host in run.hosts)} and here"


def old_table(chosen: Sequence[Old]) -> str:
    """What would be removed, as a table."""
    now = time.time()
    width = max((len(short(old.run.run)) for old in chosen), default=0)
    lines = [
        f"  {short(old.run.run).ljust(width)}  ended {duration(now - old.ended)} ago  {gibibytes(old.size):>9}  "
        f"on {', '.join(host.name for host in old.run.hosts)}"
        for old in chosen
    ]
    total = gibibytes(sum(old.size for old in chosen))
    return "\n".join([*lines, f"{amount(len(chosen), 'run')}, {total}"])
