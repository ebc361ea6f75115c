"""Lines of a run's logs as text, with host and rank before them."""

from __future__ import annotations

import json
import os
from typing import TextIO

from disttui.runner.api.log_lines import LogLines
from disttui.runner.api.questions import HostNotice
from disttui.runner.cli.render.output import put
from disttui.runner.formatting import timestamp
from disttui.runner.runs.registry import KnownRun
from disttui.runner.text import clean_lines


class LogPrinter:
    """Prints what `disttui.runner.api.log_lines.logs` yields."""

    def __init__(self, out: TextIO, err: TextIO, run: KnownRun, *, timestamps: bool = False) -> None:
        self._out = out
        self._err = err
        self._timestamps = timestamps
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
        whose = item.rank if item.rank is not None else "launcher" if item.attempt else "setup"
        prefix = f"{item.host}:{whose}".ljust(self._width) + (f" #{item.attempt}" if item.attempt > 1 else "") + " │ "
        if self._timestamps:
            moment = "-" if item.time is None else timestamp(item.time)
            prefix = f"{moment:19} {prefix}"
        self._out.write(prefix + ("\n" + prefix).join(item.lines) + "\n")
        self._out.flush()


class JsonLogPrinter:
    """Prints the same as JSON, a line each."""

    colours = False

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, item: LogLines | HostNotice) -> None:
        """Print an object for each line, or one for a note about a host."""
        if isinstance(item, HostNotice):
            put(self._out, json.dumps({"type": "say", "host": item.host, "text": item.text}) + "\n")
            return
        for line in item.lines:
            whose = {"host": item.host, "attempt": item.attempt, "rank": item.rank}
            put(self._out, json.dumps({"type": "log", **whose, "time": item.time, "line": line}) + "\n")
