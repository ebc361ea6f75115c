"""Lines of a run's logs as text, with host and rank before them."""

from __future__ import annotations

import os
from typing import TextIO

from runner.api.log_lines import LogLines
from runner.api.news import HostNotice
from runner.cli.render.output import put
from runner.runs.registry import KnownRun
from runner.text import clean_lines


class LogPrinter:
    """Prints what `runner.api.log_lines.logs` yields."""

    def __init__(self, out: TextIO, err: TextIO, run: KnownRun) -> None:
        self._out = out
        self._err = err
        env = os.environ
        self.colours = out.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        ranks = len(str(max(0, sum(host.nproc for host in run.hosts) - 1)))
        self._width = max(len(host.name) for host in run.hosts) + 1 + ranks
        """The width of `host:rank`; `host:launcher` is rare, and may be longer."""

    def write(self, item: LogLines | HostNotice) -> None:
        """Print lines, or a note about a host on standard error."""
        if isinstance(item, HostNotice):
            words = clean_lines(f"{item.host}: {item.text}")
            put(self._err, "".join(f"disttui: {line}\n" for line in words.split("\n")))
            return
        whose = "launcher" if item.rank is None else item.rank
        prefix = f"{item.host}:{whose}".ljust(self._width) + (f" #{item.attempt}" if item.attempt > 1 else "") + " │ "
        self._out.write(prefix + ("\n" + prefix).join(item.lines) + "\n")
        self._out.flush()
