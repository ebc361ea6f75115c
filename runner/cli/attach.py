"""The commands that follow runs: `attach` and `wait`."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

import disttui
from disttui.runner.cli.app import has_terminal, open_app
from disttui.runner.cli.options import duration, emit, example, wants_json
from disttui.runner.cli.run_selector import finding, finding_all, run_options, runs_options
from disttui.runner.errors import DisttuiError


@click.command(epilog=example("disttui attach 2node-7f3a", "disttui attach 2node-7f3a --host box1"))
@click.option("--read-only", is_flag=True, help="Change nothing on the hosts, not even leftovers of a dead supervisor.")
@click.option("--plain", is_flag=True, help="Print text instead of opening the dashboard.")
@run_options
def attach(read_only: bool, plain: bool, **where: Any) -> None:
    """Follow RUN until it ends; leaving does not stop it.

    In a terminal this opens the dashboard. As text it prints the run's state and the last lines of every rank first,
    and Ctrl-C detaches. RUN is an id or its beginning. The exit code of the text is the run's, 0 if detached.
    """
    with finding(**where) as (known, viewer):
        if has_terminal() and not (plain or wants_json() or viewer.settings):
            open_app("", ("run", (known.run,)), read_only=read_only)
        code = _look_in(viewer, known, read_only=read_only)
    raise SystemExit(code)


def _look_in(viewer: disttui.Viewer, run: disttui.KnownRun, *, read_only: bool) -> int:
    """Print a run to its end; Ctrl-C detaches. Returns the run's exit code, 0 if detached. Raises DisttuiError."""
    from disttui.runner.cli.render.live import AttachPrinter
    from disttui.runner.cli.render.printer import JsonPrinter, show_update
    from disttui.runner.cli.running import announcing, notices_wanted
    from disttui.runner.cli.signals import Signals
    from disttui.runner.runs.hooks import run_end_hook

    printer = JsonPrinter(sys.stdout) if wants_json() else AttachPrinter(run, colour=not os.environ.get("NO_COLOR"))
    wanted = viewer.settings or notices_wanted()
    signals = Signals(only_leave=True)
    with signals.caught():
        with (
            disttui.attach(viewer, run, control=signals, only_look=read_only) as following,
            announcing(run.run, wanted) as announce,
        ):
            for error in following.unreached.values():
                printer.say(error.sentence)
            signals.hold_back()
            for update in following:
                show_update(printer, following.state, update)
                announce(following.state)
        printer.end(following.state, run.folder)
    if not read_only:
        run_end_hook(run, following.state, printer.say)
    return following.exit_code


@click.command(
    epilog=example("disttui wait 2node-7f3a", "disttui wait @latest --until 'end|stall|loss<2' --timeout 2h")
)
@click.option(
    "--until",
    default="end",
    show_default=True,
    metavar="CONDITION",
    help="end, running, stall, alarm, step>=N, loss<X, or any of them joined by |.",
)
@click.option("--any/--all", "first", help="Of several runs, wait for the first, or for all (the default).")
@click.option("--timeout", metavar="TIME", help="Give up after 90s, 10m, 2h, 3d.")
@runs_options
def wait(until: str, first: bool, timeout: str | None, runs: tuple[str, ...], mine: bool, **where: Any) -> None:
    """Wait until runs end or meet a condition.

    Prints at most 2 KB: state, step, loss, cause, line of code, three log lines and the next command. The end of a run
    also ends the wait. Lost connections are reopened.

    \b
    Exit codes:
      0 finished · 1 failed or lost · 130 stopped (or Ctrl-C) · 124 timed out
      10 running · 11 step>=N · 12 loss<X · 13 stall · 14 alarm
      2 bad input · 3 no host of a run can be reached, or it could not be started
    With --all, the most urgent of all runs: 1, 3, 130, 124, 13, 14, then others.
    """
    from disttui.runner.api.waiting import conditions, overall
    from disttui.runner.render.waiting import waited_data, waited_text

    conditions(until)
    seconds = None if timeout is None else duration("--timeout", f"{timeout}s" if timeout.isdecimal() else timeout)
    with finding_all(runs, mine=mine, **where) as (known, viewer):
        answers = disttui.wait(viewer, known, until, first=first, timeout=seconds)
    if len(answers) == 1 and isinstance(answers[0], DisttuiError):
        raise answers[0]
    found = list(zip(known, answers, strict=True))
    code = overall(answers, first=first)
    emit(waited_data(found, code), waited_text(found))
    raise SystemExit(code)
