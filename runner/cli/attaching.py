"""Look in on a run as text: what `attach` does without the app."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from runner.api.following import attach
from runner.cli.render.jsonl import JsonPrinter
from runner.cli.render.late import LatePrinter
from runner.cli.render.printer import show_update
from runner.cli.running import finish
from runner.cli.signals import Signals
from runner.formatting import number
from runner.runs.hooks import tell_later

if TYPE_CHECKING:
    from runner.api.viewer import Viewer
    from runner.runs.history import KnownRun
    from runner.runs.state import RunState


def look_in(viewer: Viewer, run: KnownRun, *, as_json: bool, read_only: bool) -> int:
    """Follow a run to its end; Ctrl-C leaves it. Returns the run's exit code, 0 when left. Raises DisttuiError."""
    printer = JsonPrinter(sys.stdout) if as_json else LatePrinter(run, colour=not os.environ.get("NO_COLOR"))
    signals = Signals(only_leave=True)
    with signals.caught():
        with attach(viewer, run, wishes=signals, only_look=read_only) as following:
            for error in following.unreached.values():
                printer.say(error.sentence)
            signals.hold_back()
            for update in following:
                show_update(printer, following.state, update)
        finish(printer, following.state, _elapsed(run, following.state), run.folder)
    if not read_only:
        tell_later(run, following.state, printer.say)
    return following.exit_code


def _elapsed(run: KnownRun, state: RunState) -> float:
    ended = number((state.result or {}).get("t"))
    return (time.time() if ended is None else ended) - run.started
