"""The command that prints the ranks' output."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any, TextIO

import click

import disttui
from disttui.runner.cli.options import example, wants_json
from disttui.runner.cli.render.output import put
from disttui.runner.cli.run_selector import finding, run_options
from disttui.runner.errors import InputError
from disttui.runner.formatting import timestamp
from disttui.runner.text import clean, clean_lines


class LogPrinter:
    """Prints what `disttui.runner.api.log_lines.logs` yields."""

    def __init__(self, out: TextIO, err: TextIO, run: disttui.KnownRun, *, timestamps: bool = False) -> None:
        self._out = out
        self._err = err
        self._timestamps = timestamps
        env = os.environ
        self.colours = out.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        ranks = len(str(max(0, sum(host.nproc for host in run.hosts) - 1)))
        self._width = max(len(host.name) for host in run.hosts) + 1 + ranks
        """Width of `host:rank`; `host:launcher` is rare, and may be longer."""

    def write(self, item: disttui.LogLines | disttui.HostNotice) -> None:
        """Print lines, or a note about a host on standard error."""
        if isinstance(item, disttui.HostNotice):
            words = clean_lines(f"{item.host}: {item.text}")
            put(self._err, "".join(f"disttui: {line}\n" for line in words.split("\n")))
            return
        whose = item.rank if item.rank is not None else "launcher" if item.attempt else "setup"
        prefix = f"{item.host}:{whose}".ljust(self._width) + (f" #{item.attempt}" if item.attempt > 1 else "") + " │ "
        if self._timestamps:
            moment = "-" if item.time is None else timestamp(item.time)
            prefix = f"{moment:19} {prefix}"
        self._out.write(prefix + ("\n" + prefix).join(item.lines) + "\n")
        self._out.flush()


class JsonLogPrinter:
    """Prints lines of logs as JSON."""

    colours = False

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, item: disttui.LogLines | disttui.HostNotice) -> None:
        """Print an object for each line, or one for a note about a host."""
        if isinstance(item, disttui.HostNotice):
            put(self._out, json.dumps({"type": "say", "host": item.host, "text": item.text}) + "\n")
            return
        for line in item.lines:
            whose = {"host": item.host, "attempt": item.attempt, "rank": item.rank}
            put(self._out, json.dumps({"type": "log", **whose, "time": item.time, "line": line}) + "\n")


def parse_since(text: str) -> float:
    """The unix time for `10m`, `2h` or an ISO date. Raises InputError."""
    from disttui.runner.profile.fields import span

    if (seconds := span(text)) is not None:
        return time.time() - seconds
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        cure = "Give 90s, 10m, 2h, 3d or 2026-03-01T14:00."
        raise InputError(f"--since {clean(text)!r}: expected a duration or a date", cure) from None


def parse_grep(text: str) -> re.Pattern[str]:
    """A regular expression. Raises InputError."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"--grep {clean(text)!r}: {error}", "Give a Python regular expression.") from None


@click.command(
    epilog=example("disttui logs 2node-7f3a --rank 1 --since 10m", "disttui logs 2node -f --grep 'loss|Error'")
)
@click.option("--rank", type=click.IntRange(min=0), metavar="RANK", help="Only this rank.")
@click.option("--follow", "-f", is_flag=True, help="Print new lines as they arrive.")
@click.option("--since", metavar="WHEN", help="Only lines since 90s, 10m, 2h, 3d ago, or a date like 2026-03-01T14:00.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each rank.")
@click.option("-t", "--timestamps", is_flag=True, help="Show when each line was written, by its host's clock.")
@click.option("--grep", metavar="REGEX", help="Only lines that match this regular expression.")
@run_options
def logs(
    rank: int | None,
    follow: bool,
    since: str | None,
    tail: int | None,
    timestamps: bool,
    grep: str | None,
    **where: Any,
) -> None:
    """Print the logs of RUN, rank by rank.

    Then the output of torchrun, `activate` and `job.wrap`, as HOST:launcher; not with --rank.

    Times of lines are exact to a quarter of a second at best. With --host, prints only the ranks on that host, where
    it also searches for a run that is unknown here.
    """
    from disttui.runner.cli.signals import Signals
    from disttui.runner.runs.registry import is_known

    on_host = where["host"]
    if is_known(where["run"], os.environ):
        where |= {"host": None, "hosts_from": None, "run_dir": None, "trust_hosts": False}
    wanted = disttui.LineFilter(
        rank, on_host, parse_since(since) if since else None, parse_grep(grep) if grep else None,
        tail, times=timestamps or wants_json(),
    )  # fmt: skip
    signals = Signals(only_leave=True)
    with finding(**where) as (known, viewer):
        if where["host"]:  # it may have another name in the run
            names = [one.name for one in known.hosts if on_host in (one.name, one.host)]
            wanted = replace(wanted, host=names[0] if names else None)
        printer: JsonLogPrinter | LogPrinter
        if wants_json():
            printer = JsonLogPrinter(sys.stdout)
        else:
            printer = LogPrinter(sys.stdout, sys.stderr, known, timestamps=timestamps)
        found = disttui.logs(viewer, known, wanted, follow=follow, colours=printer.colours, control=signals)
        with signals.caught() if follow else nullcontext():
            for item in found:
                if isinstance(item, disttui.CaughtUp):
                    signals.hold_back()
                else:
                    printer.write(item)
