"""The interface for printing a followed run."""

from __future__ import annotations

from typing import Protocol

from runner.render.slurm import queue_words
from runner.runs.contents import Content
from runner.runs.follow import LinkNews, LogRead, Notice, QueueNews, RecordRead
from runner.runs.session import CaughtUp, StopSent, Update
from runner.runs.state import RunState


class Printer(Protocol):
    """Prints a followed run."""

    def log(self, host: str, file: str, data: bytes, *, restart: bool) -> None:
        """Print bytes of a host's log file."""

    def record(self, state: RunState, node: int, content: Content) -> None:
        """Print a record that has just been folded into `state`."""

    def link(self, state: RunState, node: int, kind: str, note: str) -> None:
        """Print a change of this viewer's link to a host."""

    def caught_up(self, state: RunState) -> None:
        """Everything that existed when following began has been passed."""

    def refresh(self, state: RunState) -> None:
        """Called a few times per second: all updates so far are in `state`."""

    def say(self, text: str) -> None:
        """Print a message of disttui."""


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
        words = "killing every process of the run" if update.now else "stopping the run; Ctrl-C again kills it at once"
        if not update.reached:
            what = "killed" if update.now else "stopped"
            words = f"no host is reached: the run is {what} once one is; a third Ctrl-C leaves it running"
        printer.say(words)
    elif isinstance(update, CaughtUp):
        printer.caught_up(state)
    else:
        printer.refresh(state)
