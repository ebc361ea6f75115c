"""Rows with a value that keys change: one more or less, a typed number, or the recommended value."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from runner.planning.plan import Plan
from tui.keys import MOVES, OPEN, bind
from tui.widgets.table import Table
from tui.wizard.step import count

MOST = 1024
"""The most processes on one host."""
LABELS = {
    "num_processes": "processes", "omp_num_threads": "threads", "gpus": "GPUs", "python": "Python",
    "interface": "interface", "addresses": "addresses",
}  # fmt: skip
"""Field of `runner.planning.processes.HostChoice` → its name here."""


class ValueTable(Table, inherit_bindings=False):
    """Rows whose value can be changed."""

    PLACE = "the list of values"
    BINDINGS: ClassVar[list[BindingType]] = [
        # All of a table's keys, because the footer has room for the first ones only.
        bind("values.less", "left,minus,h", "change(-1)", "less", "one less, or the choice before", group=OPEN),
        bind("values.more", "right,plus,l", "change(1)", "more", "one more, or the next choice", group=OPEN),
        bind("table.open", "enter", "open", "go on", "go on to the next step", group=OPEN),
        *MOVES,
        bind("values.auto", "a", "decided", "auto", "as recommended", group=OPEN),
        bind("values.digit", "0,1,2,3,4,5,6,7,8,9", "digit", "number", "type a number", group=OPEN, show=False),
    ]

    class Wanted(Message):
        """Requests another value: more or less by a number, one more digit, or None for the recommended value."""

        def __init__(self, table: ValueTable, key: str, by: int | None, digit: str = "") -> None:
            super().__init__()
            self.table, self.key, self.by, self.digit = table, key, by, digit

        @property
        def control(self) -> ValueTable:
            """The table."""
            return self.table

    def action_change(self, by: int) -> None:
        """Request one more or one less."""
        self._want(by)

    def action_decided(self) -> None:
        """Request the recommended value."""
        self._want(None)

    def on_key(self, event: events.Key) -> None:
        """Take digits as parts of a number."""
        if event.character and event.character in "0123456789":
            event.stop()
            event.prevent_default()
            self._want(0, event.character)

    def action_digit(self) -> None:
        """Do nothing: `on_key` handles digits; the binding is for the help."""

    def _want(self, by: int | None, digit: str = "") -> None:
        if self.key:
            self.post_message(self.Wanted(self, self.key, by, digit))


class Typing:
    """A number of processes that is typed digit by digit, or counted up and down."""

    def __init__(self) -> None:
        self._typed = ("", "")

    def forget(self) -> None:
        """Begin a new number with the next digit."""
        self._typed = ("", "")

    def number(self, wanted: ValueTable.Wanted, before: int) -> int | None:
        """The number after a request; None if there is no such number."""
        assert wanted.by is not None
        if not wanted.digit:
            self.forget()
            number = before + wanted.by
        else:
            typed = self._typed[1] if self._typed[0] == wanted.key else ""
            number = int(typed + wanted.digit)
            if not 1 <= number <= MOST:
                number = int(wanted.digit)
            self._typed = wanted.key, str(number)
        return number if 1 <= number <= MOST else None


def totals(plan: Plan) -> str:
    """`node1 4 + node2 2 = 6 processes`."""
    counts = " + ".join(f"{one.name} {one.num_processes}" for one in plan.hosts[:12])
    return f"{counts}{' + …' if len(plan.hosts) > 12 else ''} = {count(plan.world_size, 'process')}"
