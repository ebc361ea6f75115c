"""The printers of a followed run, and what each update has them print."""

from __future__ import annotations

import os
import sys

from disttui.runner.cli.global_options import wants_json
from disttui.runner.cli.render.jsonl import JsonPrinter
from disttui.runner.cli.render.live import AttachPrinter, TextPrinter
from disttui.runner.profile import Profile
from disttui.runner.render.status import lag_words
from disttui.runner.render.waiting import queue_words
from disttui.runner.runs.follow import LinkNews, LogRead, Notice, QueueNews, RecordRead
from disttui.runner.runs.following import CaughtUp, StopSent, Update
from disttui.runner.runs.state import RunState

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
            words = f"no host is reachable: the run is {what} once one is; a third Ctrl-C detaches"
        printer.say(words)
    elif isinstance(update, CaughtUp):
        if isinstance(printer, AttachPrinter):
            printer.caught_up(state)
    else:
        printer.refresh(state, lag_words(update.behind, update.pending))
