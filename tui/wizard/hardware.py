"""Step 2: the hardware and software of the hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message

from disttui.runner.formatting import amount
from disttui.runner.hosts.facts import Gpu, HostFacts
from disttui.runner.render.probe import differences, host_details, host_row
from disttui.tui.keys import OPEN, VIEW, bind
from disttui.tui.theme import LOOKS
from disttui.tui.widgets.points import Point
from disttui.tui.widgets.table import Cell, Column, Row, Table
from disttui.tui.wizard.draft import HostCheck, WizardState
from disttui.tui.wizard.step import Step, StepNotes, trouble


class AskingTable(Table):
    """A table of hosts whose keys request actions from the screen."""

    class Asked(Message):
        """Requests an action on a host (`retry`, `drop` or `cancel`), or on all that have failed (`drop dead`)."""

        def __init__(self, key: str, what: str) -> None:
            super().__init__()
            self.key, self.what = key, what

    def action_ask(self, what: str) -> None:
        if self.key:
            self.post_message(self.Asked(self.key, what))


class HardwareTable(AskingTable):
    """The table of the hosts' hardware, with one row per host."""

    PLACE = "the list of hosts"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("hardware.retry", "r", "ask('retry')", "retry", "probe this host again", group=VIEW),
        bind("hardware.leave_out", "x", "ask('drop')", "remove", "remove this host", group=OPEN),
        bind("hardware.dead", "X", "ask('drop dead')", "remove failed", "remove unusable hosts",
             show=False),
        bind("table.open", "enter", "open", "next", "next step", group=OPEN),
    ]  # fmt: skip


class HardwareStep(Step):
    """Each host's facts, the users of its GPUs, and the differences between the hosts."""

    TITLE = "Hardware"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column(""), Column("host", most=28), Column("GPUs", most=60, grows=True, least=24), Column("free", "right"),
        Column("cores", "right"), Column("GiB", "right"), Column("torch", most=24),
        Column("address", rank=1, most=40),
    )  # fmt: skip

    def compose(self) -> ComposeResult:
        with Vertical(classes="main"):
            yield HardwareTable(self.COLUMNS, id="hardware-table")
        yield StepNotes()

    def show(self, view: WizardState) -> None:
        """Show every host, and mark values that differ from those of most hosts."""
        super().show(view)
        states = view.of_hosts()
        known = [(state.name, state.facts) for state in states if state.facts]
        marked, self._differences = differences(known)
        places = {name: at for at, (name, _) in enumerate(known)}
        rows = [_row(state, places.get(state.name, -1), marked, bool(view.errors(state))) for state in states]
        self.query_one(HardwareTable).show(rows)
        self._show_notes()

    def enter(self) -> None:
        self.query_one(HardwareTable).focus()

    def leave(self) -> str:
        """Return the hosts that have failed or have not answered, and how to continue."""
        waiting = [state.name for state in self.view.of_hosts() if state.pending]
        failed = [state.name for state in self.view.of_hosts() if state.state in ("failed", "left out")]
        if failed:
            if len(failed) > 1:
                more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
                return f"{', '.join(failed[:3])}{more} cannot be used: r retries, X removes them all."
            return f"{failed[0]} cannot be used: r retries, x removes it."
        return f"{', '.join(waiting[:3])} has not answered yet: wait, or remove it with x." if waiting else ""

    @on(Table.Highlighted)
    def _moved(self) -> None:
        self._show_notes()

    def _show_notes(self) -> None:
        key = self.query_one(HardwareTable).key
        state = self.view.states.get(key)
        apart = (Point(line[2:], "$state-slow", "≠ ") for line in self._differences)
        wrong = (
            point
            for finding in (self.view.errors(state) if state and state.facts and not state.pending else ())
            for point in (Point(finding.what, "$state-failed", "✗ "), Point(finding.cure, mark="→ "))
        )
        self.query_one(StepNotes).tell(key, *wrong, *_about(state), *apart)


def _about(state: HostCheck | None) -> Iterator[Point | str]:
    if state is None or state.pending:
        yield "waiting for an answer"
    elif state.error:
        yield from trouble(state.error)
    elif state.facts:
        facts = state.facts
        yield f"{facts.cpu.model} · {amount(facts.cpu.available, 'core')} for this login of {facts.cpu.physical}"
        yield from (Point(line, hang=2) for line in host_details(facts, True))


def _row(state: HostCheck, at: int, marked: set[tuple[int, str]], wrong: bool) -> Row:
    if state.facts is None:
        seen = LOOKS["waiting" if state.pending else "failed"]
        return Row(state.name, ([(seen.glyph, seen.css)], state.name, [(state.state, seen.css)], *[""] * 5))
    facts = state.facts
    _, cores, memory, free, torch, address = host_row(at, state.name, facts, set())

    def cell(column: str, text: str) -> Cell:
        return [(f"≠ {text}", "state--slow")] if (at, column) in marked else text

    cuda = next((one.cuda for one in facts.interpreters if one.is_eligible), None)
    torch += f" cu{cuda}" if cuda and "+cu" not in torch else ""
    gpus = cell("GPUs", gpu_kinds(facts))
    busy = any(gpu.busy for gpu in facts.gpus)
    seen = LOOKS["failed" if wrong else "done"]
    torch_cell: Cell = [(torch, "state--failed")]
    if any(one.is_eligible for one in facts.interpreters):
        torch_cell = cell("torch", torch)
    return Row(
        state.name,
        ([(seen.glyph, seen.css)], [(state.name, "strong")], gpus,
         [(free.removesuffix(" free"), "state--slow" if busy else "")], cell("cores", cores),
         cell("memory", memory.removesuffix(" GiB")), torch_cell, address),
    )  # fmt: skip


def gpu_kinds(facts: HostFacts) -> str:
    """The GPUs of a host as text: `6 × A100-SXM4 80 GiB`."""
    kinds = Counter(map(gpu_name, facts.gpus))
    return ", ".join(f"{number} × {name}" for name, number in kinds.items()) or "none"


def gpu_name(gpu: Gpu) -> str:
    """The model and memory of a GPU: `A100-SXM4 80 GiB`; a size in the name is not repeated."""
    name = re.sub(r"[- ]\d+GB\b", "", gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce "))
    return f"{name} {gpu.size}"
