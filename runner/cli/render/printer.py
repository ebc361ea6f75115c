"""What prints a run while it is followed."""

from __future__ import annotations

from typing import Protocol

from runner.runs.contents import Content
from runner.runs.follow import LinkNews, LogRead, Notice, RecordRead
from runner.runs.session import CaughtUp, StopSent, Update
from runner.runs.state import RunState


class Printer(Protocol):
    """Shows a run as it goes on."""

    def log(self, host: str, file: str, data: bytes, *, restart: bool) -> None:
        """Take bytes of a host's log file."""

    def record(self, state: RunState, node: int, content: Content) -> None:
        """Take a record that has just been folded into `state`."""

    def link(self, state: RunState, node: int, kind: str, note: str) -> None:
        """Take news of this viewer's link to a host."""

    def caught_up(self, state: RunState) -> None:
        """All that was there when the following began has been taken."""

    def refresh(self, state: RunState) -> None:
        """Called some times a second: everything that has come is in `state`."""

    def say(self, text: str) -> None:
        """Say something in disttui's own words."""


def show_update(printer: Printer, state: RunState, update: Update) -> None:
    """Print what is new of a run that is followed."""
    if isinstance(update, LogRead):
        printer.log(state.hosts[update.node].name, update.file, update.data, restart=update.restart)
    elif isinstance(update, RecordRead):
        printer.record(state, update.node, update.content)
    elif isinstance(update, LinkNews):
        printer.link(state, update.node, update.kind, update.note)
    elif isinstance(update, Notice):
        printer.say(f"{state.hosts[update.node].name}: {update.text}")
    elif isinstance(update, StopSent):
        words = "killing every process of the run" if update.now else "stopping the run; Ctrl-C again kills it at once"
        printer.say(words)
    elif isinstance(update, CaughtUp):
        printer.caught_up(state)
    else:
        printer.refresh(state)
