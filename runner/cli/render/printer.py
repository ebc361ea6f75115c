"""The printers of a followed run, as text or JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from disttui.runner.cli.options import wants_json
from disttui.runner.cli.render.live import RANK_LOG, AttachPrinter, TextPrinter
from disttui.runner.cli.render.output import check_reader, put
from disttui.runner.profile.schema import Profile
from disttui.runner.render.status import lag_words
from disttui.runner.render.story import lost_words
from disttui.runner.render.waiting import queue_words
from disttui.runner.runs.condition import is_lost
from disttui.runner.runs.contents import Content, EventLine, ExitFile, MetricsLine, NewerEvent, TelemetryLine
from disttui.runner.runs.follow import LinkNews, LogRead, Notice, QueueNews, RecordRead
from disttui.runner.runs.following import CaughtUp, StopSent, Update
from disttui.runner.runs.state import RunState
from disttui.runner.text import LineMaker


class JsonPrinter:
    """Prints a run as JSON lines.

    Every object has `type`: `log` (host, attempt, rank, line), `event`, `metrics`, `telemetry`, `exit` (host, record),
    `link` (host, state, note), `say` (text), `end` (run, result), `detached` (run). A record from a host is nested in
    its own field, so that it cannot replace a key of ours.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lines: dict[tuple[str, str], LineMaker] = {}

    def log(self, host: str, file: str, data: bytes, *, restart: bool) -> None:
        """Print the lines that these bytes complete."""
        if restart:
            self._lines.pop((host, file), None)
        elif RANK_LOG.fullmatch(file):
            self._print_lines(host, file, self._lines.setdefault((host, file), LineMaker()).feed(data))

    def record(self, state: RunState, node: int, content: Content) -> None:
        """Print a record under the type of its file."""
        host = state.hosts[node].name
        match content:
            case MetricsLine(attempt, rank, metrics):
                self._print({"type": "metrics", "host": host, "attempt": attempt, "rank": rank, "record": metrics})
            case EventLine(record) | NewerEvent(_, record):
                self._print({"type": "event", "host": host, "record": record})
            case TelemetryLine(record):
                self._print({"type": "telemetry", "host": host, "record": record})
            case ExitFile(record):
                self._print({"type": "exit", "host": host, "record": record})

    def link(self, state: RunState, node: int, kind: str, note: str) -> None:
        """Print a change of this viewer's link to a host."""
        self._print({"type": "link", "host": state.hosts[node].name, "state": kind, "note": note})

    def refresh(self, state: RunState, lag: str = "") -> None:
        """Notice closed output; every record has been printed."""
        check_reader(self._out)

    def say(self, text: str) -> None:
        """Print a message of disttui."""
        self._print({"type": "say", "text": text})

    def end(self, state: RunState, folder: Path) -> None:
        """Print unfinished lines and the result, or that the run continues without this viewer."""
        for (host, file), maker in self._lines.items():
            self._print_lines(host, file, maker.flush())
        if state.result is not None or is_lost(state):
            result = state.result or {"state": "lost", "code": 1, "cause": {"message": lost_words(state)}}
            self._print({"type": "end", "run": state.run, "result": result, "logs": str(folder)})
        else:
            self.detached(state.run)

    def detached(self, run: str) -> None:
        """Print the id of a run that continues without this viewer."""
        self._print({"type": "detached", "run": run})

    def _print_lines(self, host: str, file: str, lines: list[str]) -> None:
        found = RANK_LOG.fullmatch(file)
        assert found
        attempt, rank = int(found.group(1)), int(found.group(2))
        for line in lines:
            self._print({"type": "log", "host": host, "attempt": attempt, "rank": rank, "line": line})

    def _print(self, message: Mapping[str, object]) -> None:
        put(self._out, json.dumps(message) + "\n")


Printer = TextPrinter | JsonPrinter


def make_printer(profile: Profile) -> Printer:
    """The printer of a run that this command starts."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show must not end the command.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    if wants_json():
        return JsonPrinter(sys.stdout)
    names = tuple(host.name for host in profile.hosts)
    most = sum(host.num_processes or 1 for host in profile.hosts)
    return TextPrinter(sys.stdout, sys.stderr, names, most, colour=not os.environ.get("NO_COLOR"))


def show_update(printer: Printer, state: RunState, update: Update) -> None:
    """Print an update of a followed run."""
    if isinstance(update, LogRead):
        printer.log(state.hosts[update.node].name, update.file, update.data, restart=update.restart)
    elif isinstance(update, RecordRead):
        printer.record(state, update.node, update.content)
    elif isinstance(update, LinkNews):
        printer.link(state, update.node, update.kind, update.note)
    elif isinstance(update, Notice):
        printer.say(f"{state.hosts[update.node].name}: {update.text}")
    elif isinstance(update, QueueNews):
        if words := queue_words(update.queued):
            printer.say(words)
    elif isinstance(update, StopSent):
        words = "killing every process of the run" if update.now else "stopping the run; press Ctrl-C again to kill it"
        if not update.reached:
            what = "killed" if update.now else "stopped"
            words = f"no host is reachable; the run will be {what} when one is; a third Ctrl-C detaches"
        printer.say(words)
    elif isinstance(update, CaughtUp):
        if isinstance(printer, AttachPrinter):
            printer.caught_up(state)
    else:
        printer.refresh(state, lag_words(update.behind, update.pending))
