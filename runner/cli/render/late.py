"""The live view of somebody who comes late: where the run is, the last lines of every rank, then everything as it
comes."""

from __future__ import annotations

import re
import sys
import time
from collections import deque

from runner.cli.render.live import TextPrinter
from runner.formatting import duration, when
from runner.ids import short
from runner.render.status import metric_words, progress
from runner.runs.contents import Content
from runner.runs.registry import KnownRun
from runner.runs.state import RunState
from runner.text import LineMaker, clean

LINES = 10
"""Of every rank that are shown at first."""


class LatePrinter(TextPrinter):
    """Prints a run that others have begun. `disttui logs` has what came before."""

    def __init__(self, run: KnownRun, *, colour: bool) -> None:
        names = tuple(host.name for host in run.hosts)
        super().__init__(sys.stdout, sys.stderr, names, sum(host.nproc for host in run.hosts), colour=colour)
        self._run = run
        self._history: dict[tuple[str, str], deque[str]] | None = {}
        self._begun -= max(0.0, time.time() - run.started)

    def caught_up(self, state: RunState) -> None:
        """Print the beginning: all that was there has been taken."""
        history, self._history = self._history or {}, None
        self.say(headline(self._run, state))
        newest = f"attempt-{max(1, state.attempt)}/"
        for place in sorted(history, key=lambda place: _order(place[1])):
            if place[1].startswith(newest):
                self._print(place, list(history[place]))

    def log(self, host: str, file: str, data: bytes, *, restart: bool) -> None:
        """Keep the last lines until all that was there has come, then print."""
        if self._history is None or restart or not re.search(r"/rank-\d+\.log$", file):
            super().log(host, file, data, restart=restart)
            return
        place = (host, file)
        lines = self._lines.setdefault(place, LineMaker(colours=self._colour)).feed(data)
        self._history.setdefault(place, deque(maxlen=LINES)).extend(lines)

    def record(self, state: RunState, node: int, content: Content) -> None:
        """Say nothing of what has long been."""
        if self._history is None:
            super().record(state, node, content)

    def refresh(self, state: RunState) -> None:
        """Draw nothing before the beginning has come."""
        if self._history is None:
            super().refresh(state)


def headline(run: KnownRun, state: RunState) -> str:
    """Where a run is, in one line."""
    counts = " + ".join(f"{host.name} {host.nproc}" for host in run.hosts)
    words = [f"{short(run.run)}, started {when(run.started)} by {clean(run.by)}: {counts}"]
    if state.attempt > 1:
        words.append(f"attempt {state.attempt}")
    if done := progress(state):
        words.append(f"step {done[0]:,.0f}/{done[1]:,.0f}")
    words += metric_words(state.metrics)
    if state.result is None:
        words.append(f"{duration(time.time() - run.started)} so far")
    return ", ".join(words)


def _order(file: str) -> tuple[int, int]:
    numbers = [int(word) for word in re.findall(r"\d+", file)]
    return (numbers[0], numbers[-1]) if numbers else (0, 0)
