"""Step 2: what the hosts have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message

from runner.facts import HostFacts
from runner.show.probe import differences, host_details, host_row
from tui.keys import OPEN, VIEW, bind
from tui.screens.wizard.draft import HostState, View
from tui.screens.wizard.step import Line, Notes, Step, count
from tui.widgets.table import Cell, Column, Row, Table, state_cell


class HardwareTable(Table):
    """One row per host."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("hardware.retry", "r", "ask('retry')", "look again", "probe this host once more", group=VIEW),
        bind("hardware.leave_out", "x", "ask('drop')", "leave out", "leave this host out of the run", group=OPEN),
        bind("table.open", "enter", "open", "go on", "go on to the next step", group=OPEN),
    ]

    class Asked(Message):
        """Something is wanted with a host: `retry` or `drop`."""

        def __init__(self, key: str, what: str) -> None:
            super().__init__()
            self.key, self.what = key, what

    def action_ask(self, what: str) -> None:
        """Ask it of the screen."""
        if self.key:
            self.post_message(self.Asked(self.key, what))


class HardwareStep(Step):
    """What each host has, who uses it, and how the hosts differ."""

    TITLE = "Hardware"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("host", most=28), Column("state", most=14, rank=1), Column("GPUs", most=40),
        Column("free", "right"), Column("cores", "right"), Column("memory", "right"), Column("torch", most=22),
        Column("CUDA", rank=2, most=8), Column("address", rank=3, most=40, grows=True),
    )  # fmt: skip

    def compose(self) -> ComposeResult:
        """Table, details of one host."""
        with Vertical(classes="main"):
            yield HardwareTable(self.COLUMNS, id="hardware-table")
        yield Notes()

    def show(self, view: View) -> None:
        """Show every host, with what is not as on most marked."""
        super().show(view)
        states = view.of_hosts()
        known = [(state.name, state.facts) for state in states if state.facts]
        marked, self._differences = differences(known)
        places = {name: at for at, (name, _) in enumerate(known)}
        rows = [_row(state, places.get(state.name, -1), marked) for state in states]
        self.query_one(HardwareTable).show(rows)
        self._tell()

    def enter(self) -> None:
        """To the table."""
        self.query_one(HardwareTable).focus()

    def leave(self) -> str:
        """All hosts must have answered."""
        assert self.view is not None
        waiting = [state.name for state in self.view.of_hosts() if state.pending]
        failed = [state.name for state in self.view.of_hosts() if state.state in ("failed", "left out")]
        if failed:
            return f"{', '.join(failed[:3])} cannot be used: r tries again, x leaves it out."
        return f"{', '.join(waiting[:3])} has not answered yet: wait, or leave it out with x." if waiting else ""

    @on(Table.Highlighted)
    def _moved(self) -> None:
        self._tell()

    def _tell(self) -> None:
        assert self.view is not None
        key = self.query_one(HardwareTable).key
        state = self.view.states.get(key)
        self.query_one(Notes).tell(key, *_about(state), *((line, "$state-slow") for line in self._differences))


def _about(state: HostState | None) -> Iterator[Line]:
    if state is None or state.pending:
        yield "waiting for its answer"
    elif state.error:
        yield from ((line, "$state-failed") for line in state.error.what.splitlines()[:6])
        if state.error.cure:
            yield f"→ {state.error.cure}"
    elif state.facts:
        facts = state.facts
        yield f"{facts.cpu.model} · {count(facts.cpu.available, 'core')} for this login of {facts.cpu.physical}"
        yield from (line.strip() if line.startswith("    ") else line for line in host_details(facts, True))


def _row(state: HostState, at: int, marked: set[tuple[int, str]]) -> Row:
    if state.facts is None:
        shown: Cell = [(f"◌ {state.state}", "state--waiting")] if state.pending else state_cell(state.state)
        return Row(state.name, (state.name, shown, "", "", "", "", "", "", ""))
    facts = state.facts
    _, cores, memory, free, torch, address = host_row(at, state.name, facts, set())

    def cell(column: str, text: str) -> Cell:
        return [(f"{text} ≠", "state--slow")] if (at, column) in marked else text

    cuda = next((one.cuda for one in facts.interpreters if one.torch), None) or "-"
    gpus = cell("GPUs", _gpus(facts))
    busy = any(gpu.busy for gpu in facts.gpus)
    return Row(
        state.name,
        ([(state.name, "table--strong")], [("✓ ready", "state--done")], gpus,
         [(free.removesuffix(" free"), "state--slow" if busy else "")], cell("cores", cores), cell("memory", memory),
         cell("torch", torch), cuda, address),
    )  # fmt: skip


def _gpus(facts: HostFacts) -> str:
    """`6 × A100-SXM4-80GB 80 GiB`."""
    kinds: dict[tuple[str, int], int] = {}
    for gpu in facts.gpus:
        name = gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
        kinds[name, round(gpu.memory_total / 2**30)] = kinds.get((name, round(gpu.memory_total / 2**30)), 0) + 1
    return ", ".join(f"{number} × {name} {memory} GiB" for (name, memory), number in kinds.items()) or "none"
