"""The command that prints the ranks' output."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import nullcontext
from datetime import datetime
from typing import Any

import click

from runner.cli.options import example
from runner.cli.run_selector import finding, run_options
from runner.errors import InputError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_since(text: str) -> float:
    """The unix time for `10m`, `2h` or an ISO date. Raises InputError."""
    from runner.text import clean

    if found := re.fullmatch(r"(\d{1,9})([smhd])", text):
        return time.time() - int(found[1]) * _UNITS[found[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        cure = "Give 90s, 10m, 2h, 3d or 2026-03-01T14:00."
        raise InputError(f"--since {clean(text)!r}: no span of time and no date", cure) from None


def parse_grep(text: str) -> re.Pattern[str]:
    """A regular expression. Raises InputError."""
    from runner.text import clean

    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"--grep {clean(text)!r}: {error}", "Give a regular expression of Python's kind.") from None


@click.command(
    epilog=example("disttui logs 2node-7f3a --rank 1 --since 10m", "disttui logs 2node -f --grep 'loss|Error'")
)
@click.option("--rank", type=click.IntRange(min=0), metavar="RANK", help="Of this rank only.")
@click.option("--follow", "-f", is_flag=True, help="Go on, and print new lines as they come.")
@click.option(
    "--since", metavar="WHEN", help="What was printed since: 90s, 10m, 2h, 3d ago, or a date like 2026-03-01T14:00."
)
@click.option("--grep", metavar="REGEX", help="Only lines in which this is found.")
@run_options
def logs(rank: int | None, follow: bool, since: str | None, grep: str | None, **where: Any) -> None:
    """Print all that the ranks of RUN have printed, rank by rank.

    Then what torchrun, `activate` and `job.wrap` have printed, as HOST:launcher; not with --rank.

    With --host, of the ranks on that host of the run; a run that is not known here is looked for there.
    """
    from runner.api.log_lines import LineFilter
    from runner.api.log_lines import logs as lines
    from runner.cli.render.log_lines import LogPrinter
    from runner.cli.signals import Signals
    from runner.runs.registry import is_known
    from runner.runs.session import CaughtUp

    on_host = None
    if is_known(where["run"], os.environ):
        on_host, where["host"] = where["host"], None
    wanted = LineFilter(rank, on_host, parse_since(since) if since else None, parse_grep(grep) if grep else None)
    signals = Signals(only_leave=True)
    with finding(**where) as (known, viewer):
        printer = LogPrinter(sys.stdout, sys.stderr, known)
        found = lines(viewer, known, wanted, follow=follow, colours=printer.colours, wishes=signals)
        with signals.caught() if follow else nullcontext():
            for item in found:
                if isinstance(item, CaughtUp):
                    signals.hold_back()
                else:
                    printer.write(item)
