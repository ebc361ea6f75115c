"""`disttui gc`: remove old runs, on their hosts and here, after saying which."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.commands.stop import forget
from runner.errors import DisttuiError, InputError
from runner.formatting import amount, duration, gibibytes
from runner.ids import short
from runner.profile.numbers import size
from runner.protocol.summary import disk_use
from runner.runs.find import known_runs
from runner.runs.history import KnownRun
from runner.runs.remote import reach
from runner.runs.summary import summaries
from runner.text import clean
from runner.transport import Connector

LIMIT = 10.0
_DAY = 86400.0


@dataclass(frozen=True)
class Old:
    """A run that has ended, and what it holds."""

    run: KnownRun
    ended: float
    size: int
    """Bytes here and on its hosts."""


def parse_age(text: str) -> float:
    """Seconds that `30d` or `12h` means. Raises InputError."""
    found = re.fullmatch(r"(\d{1,6})([dh])", text)
    if not found:
        raise InputError(f"--older {clean(text)!r}: no age", "Give 30d or 12h.")
    return int(found[1]) * (_DAY if found[2] == "d" else 3600.0)


def parse_size(text: str) -> int:
    """Bytes that `10GiB` means. Raises InputError."""
    found = size(text)
    if found is None:
        raise InputError(f"--over {clean(text)!r}: no size", "Give 500MiB or 10GiB.")
    return found


def choose(
    environ: Mapping[str, str], connect: Callable[[str | None], Connector], *, older: float | None, over: int | None
) -> tuple[list[Old], list[str]]:
    """The ended runs to remove: older than `older` seconds, and the oldest until all hold no more than `over` bytes.

    Returns:
        These runs, oldest first, and what kept others from being looked at.
    """
    runs, problems = known_runs(environ)
    ended = []
    for run in runs:
        try:
            found = _look(run, connect(run.ssh_config))
        except DisttuiError as error:
            problems.append(f"{short(run.run)}: {clean(error.sentence)}; left alone")
            continue
        if found:
            ended.append(found)
    ended.sort(key=lambda old: old.ended)
    now, total = time.time(), sum(old.size for old in ended)
    chosen = []
    for old in ended:
        if (older is not None and now - old.ended > older) or (over is not None and total > over):
            chosen.append(old)
            total -= old.size
    return chosen, problems


def render(chosen: list[Old]) -> str:
    """What would be removed, as a table."""
    now = time.time()
    width = max(len(short(old.run.run)) for old in chosen)
    lines = [
        f"  {short(old.run.run).ljust(width)}  ended {duration(now - old.ended)} ago  {gibibytes(old.size):>9}  "
        f"on {', '.join(host.name for host in old.run.hosts)}"
        for old in chosen
    ]
    total = gibibytes(sum(old.size for old in chosen))
    return "\n".join([*lines, f"{amount(len(chosen), 'run')}, {total}"])


def remove(chosen: list[Old], connect: Callable[[str | None], Connector], say: Callable[[str], None]) -> int:
    """Forget the runs; return the exit code of the command."""
    code = 0
    for old in chosen:
        try:
            forget(old.run, connect(old.run.ssh_config), say)
        except DisttuiError as error:
            say(f"{short(old.run.run)}: {error.sentence}")
            code = error.exit_code
    return code


def _look(run: KnownRun, connector: Connector) -> Old | None:
    """A run's end and size, None while it lives. Raises DisttuiError when a host cannot be reached."""
    here = disk_use(str(run.folder))
    known: dict[str, Any] = run.summary()
    if run.sandbox:
        return None if known["state"] in ("running", "joining") else Old(run, _ended(known, run), here)
    with reach(run, connector, limit=LIMIT) as reached:
        reached.refuse_some()
        held = here
        for node, answer in reached.ask("list", **run.request()).items():
            if isinstance(answer, DisttuiError):
                raise answer
            for one in summaries(answer):
                if one["run"] == run.run and one.get("node_rank") == node:
                    if one.get("alive") or "problem" in one:
                        return None
                    known.update(one)
                    held += one.get("size", 0)
    return Old(run, _ended(known, run), held)


def _ended(summary: Mapping[str, Any], run: KnownRun) -> float:
    ended = summary.get("ended")
    return float(ended) if isinstance(ended, int | float) else run.started
