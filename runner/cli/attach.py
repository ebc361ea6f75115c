"""The command that attaches to a run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from runner.cli.app import has_terminal, open_app
from runner.cli.options import AS_LINES, example
from runner.cli.run_selector import finding, run_options

if TYPE_CHECKING:
    from runner.api.viewer import Viewer
    from runner.runs.registry import KnownRun


@click.command(epilog=example("disttui attach 2node-7f3a", "disttui attach 2node-7f3a --host box1"))
@click.option("--read-only", is_flag=True, help="Change nothing on the hosts, not even what a dead supervisor left.")
@AS_LINES
@click.option("--plain", is_flag=True, help="Print text in a terminal as well, instead of opening the dashboard.")
@run_options
def attach(read_only: bool, as_json: bool, plain: bool, **where: Any) -> None:
    """Follow RUN until it ends; leaving does not stop it.

    In a terminal this is the app's dashboard. As text it begins with where the run is and the last lines of every
    rank, and Ctrl-C leaves. RUN is an id or its beginning. The exit code of the text is the run's; 0 when it was left.
    """
    with finding(**where) as (known, viewer):
        if has_terminal() and not (plain or as_json):
            options = {name: where[name] for name in ("ssh_config", "accept_new_host_keys")}
            open_app("", ("run", (known.run,)), read_only=read_only, **options)
        code = _look_in(viewer, known, as_json=as_json, read_only=read_only)
    raise SystemExit(code)


def _look_in(viewer: Viewer, run: KnownRun, *, as_json: bool, read_only: bool) -> int:
    """Print a run to its end; Ctrl-C leaves it. Returns the run's exit code, 0 when left. Raises DisttuiError."""
    from runner.api.following import attach as follow_late
    from runner.cli.render.jsonl import JsonPrinter
    from runner.cli.render.live import AttachPrinter
    from runner.cli.render.printer import show_update
    from runner.cli.running import announcing, finish, notices_wanted
    from runner.cli.signals import Signals
    from runner.runs.hooks import tell_later

    printer = JsonPrinter(sys.stdout) if as_json else AttachPrinter(run, colour=not os.environ.get("NO_COLOR"))
    wanted = notices_wanted()
    signals = Signals(only_leave=True)
    with signals.caught():
        with (
            follow_late(viewer, run, wishes=signals, only_look=read_only) as following,
            announcing(run.run, wanted) as announce,
        ):
            for error in following.unreached.values():
                printer.say(error.sentence)
            signals.hold_back()
            for update in following:
                show_update(printer, following.state, update)
                announce(following.state)
        finish(printer, following.state, run.folder)
    if not read_only:
        tell_later(run, following.state, printer.say)
    return following.exit_code
