"""`disttui attach`: look at a run that goes on, or has gone on, without this viewer."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from runner.cli.render.jsonl import JsonPrinter
from runner.cli.render.late import LatePrinter
from runner.headless import finish
from runner.hosts.link import Link
from runner.hosts.survey import open_link
from runner.runs.history import KnownRun, mirror_of
from runner.runs.hooks import tell_later
from runner.runs.remote import TAIL, missing, reach
from runner.runs.session import Session, Signals
from runner.runs.state import RunState
from runner.transport import Connector


def attach(
    run: KnownRun, connector: Connector, environ: Mapping[str, str], *, as_json: bool = False, read_only: bool = False
) -> int:
    """Follow a run to its end; Ctrl-C leaves it. Returns the run's exit code, 0 when left.

    Raises:
        DisttuiError: No host of the run can be reached, and the mirror is not whole.
    """
    printer = JsonPrinter(sys.stdout) if as_json else LatePrinter(run, colour=not environ.get("NO_COLOR"))
    signals = Signals()
    with signals.caught(), mirror_of(run) as folder:
        nodes = missing(run, folder)
        with reach(run, connector, nodes) as reached:
            if nodes:
                reached.refuse_none()
            for node, error in reached.errors.items():
                printer.say(f"{run.hosts[node].name}: {error.what.removeprefix(run.hosts[node].name + ': ')}")
            signals.hold_back()
            session = Session(
                run.begin(),
                printer,
                signals,
                folder=folder,
                request={**run.request(), "tail": TAIL},
                reopen=lambda node: _reopen(run, node, connector),
                attached=True,
                only_look=read_only,
                caught_up=printer.caught_up if isinstance(printer, LatePrinter) else None,
            )
            code = session.follow([reached.links.get(node) for node in range(len(run.hosts))])
        finish(printer, session.state, _elapsed(run, session.state), run.folder)
    if not read_only:
        tell_later(run, session.state, printer.say)
    return code


def _reopen(run: KnownRun, node: int, connector: Connector) -> Link:
    return open_link(run.hosts[node].as_host(), connector)


def _elapsed(run: KnownRun, state: RunState) -> float:
    ended = (state.result or {}).get("t")
    return (ended if isinstance(ended, int | float) else time.time()) - run.started
