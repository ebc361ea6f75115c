"""The form of one host: its processes, GPUs, interface, address for other hosts, and Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input

from disttui.runner.api.preparing import Planned
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.planning.processes import who_uses
from disttui.runner.text import clean
from disttui.tui.keys import OPEN, bind
from disttui.tui.screen import DisttuiModal
from disttui.tui.widgets.bars import Hints, Key
from disttui.tui.widgets.points import Point
from disttui.tui.widgets.table import Cell, Column, Row, Table
from disttui.tui.wizard.draft import Draft, WizardState
from disttui.tui.wizard.hardware import gpu_name
from disttui.tui.wizard.processes import LABELS, NumberEntry, ValueTable, totals
from disttui.tui.wizard.step import StepNotes

_GPU = "gpu-"
_REASONS = {"address": "addresses"}
_VALUE = 1
"""The column of the values."""


class FormTable(ValueTable):
    """The table of one host's values."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("form.tick", "space", "change(1)", "tick", "use this GPU or not; the next choice", group=OPEN)
    ]

    def cell_clicked(self, column: int, x: int) -> bool:
        ticks = column == _VALUE and x < len("[x]") and self.key.startswith(_GPU)
        if ticks:
            self.action_change(1)
        return ticks


class PathInput(Input):
    """The input for the path of an interpreter."""

    BINDINGS: ClassVar[list[BindingType]] = [bind("form.drop", "escape", "screen.list", "back", "back to the values")]


class HostForm(DisttuiModal[None]):
    """Shows the values of one host, and applies each change immediately.

    Args:
        rank: The host's node rank.
        view: The state that the wizard shows.
        change: Applies a new draft and returns the resulting state.
    """

    BINDINGS: ClassVar[list[BindingType]] = [bind("form.close", "escape,q,e", "dismiss", "done")]
    DEFAULT_CSS = """
    HostForm FormTable { height: auto; max-height: 55vh; background: $panel; }
    HostForm PathInput { display: none; }
    HostForm.-typing PathInput { display: block; }
    HostForm StepNotes { height: 5; padding: 0; background: $panel; }
    HostForm.-short StepNotes { height: 3; }
    """

    def __init__(self, rank: int, view: WizardState, change: Callable[[Draft], WizardState]) -> None:
        super().__init__()
        self._rank = rank
        self._change = change
        self._typing = NumberEntry()
        self._take(view)

    def _take(self, view: WizardState) -> None:
        """Take a new state; keep the last plan if the new draft has none."""
        self._draft = view.draft
        if view.planned:
            self._planned: Planned = view.planned

    @property
    def _facts(self) -> HostFacts:
        return self._planned.facts[self._rank]

    def compose(self) -> ComposeResult:
        """Yield the values, an input, their consequences and the keys."""
        less, more = (self.app.get_key_display(Binding(key, "")) for key in ("left", "right"))
        keys = (Key("space", "space", "tick"), Key("left", less, "less"), Key("right", more, "more"),
                Key("a", "a", "auto"), Key("escape", "esc", "done"))  # fmt: skip
        host = self._draft.hosts[self._rank]
        columns = (
            Column(clean(host), most=16), Column("", most=32, least=23), Column("", most=6, rank=1),
            Column("", most=120, grows=True, rank=2),
        )  # fmt: skip
        with VerticalScroll(classes="box whole", can_focus=False):
            yield FormTable(columns)
            yield PathInput(placeholder="path of an interpreter on the host; empty: recommended")
            yield StepNotes()
            yield Hints(*keys, after="0-9 number")

    def on_mount(self) -> None:
        self._show()
        self.query_one(FormTable).focus()

    def _show(self) -> None:
        self.query_one(FormTable).show(list(self._rows()))
        self._show_notes()

    def _rows(self) -> Iterator[Row]:
        host, facts = self._planned.plan.hosts[self._rank], self._facts
        choice = self._planned.recommendation.hosts[self._rank]
        yield self._row("num_processes", "processes", str(host.num_processes), "")
        ticked = self._gpus()
        for gpu in facts.gpus:
            tick = ("[x] ", "state--running") if gpu.index in ticked else ("[ ] ", "muted")
            state = f"held by {who_uses(gpu, facts.time)}" if gpu.busy else "free"
            yield self._row(f"{_GPU}{gpu.index}", f"GPU {gpu.index}", [tick, (gpu_name(gpu), "")], state)
        if not self._draft.sandbox:
            names = [nic.name for nic in facts.nics if nic.up]
            yield self._row("interface", "interface", host.interface or "by route", ", ".join(names))
            yield self._row("address", "address", next(iter(choice.addresses), "none"), "for other hosts")
        yield self._row("python", "Python", host.python, "enter types a path")

    def _row(self, key: str, label: str, value: Cell, what: str) -> Row:
        own = ("gpus" if key.startswith(_GPU) else key) in self._draft.said(self._rank)
        if key == "num_processes":  # it may be written once, for all hosts
            own = self._planned.profile.hosts[self._rank].num_processes is not None
        mark: Cell = [("yours", "state--running")] if own else [("auto", "muted")]
        shown: Cell = [(value, "strong")] if isinstance(value, str) else value
        return Row(key, (label, shown, mark, [(what, "muted")]))

    def _gpus(self) -> tuple[int, ...]:
        """The ticked GPUs: those that the profile lists, or else the recommended ones."""
        said = self._draft.said(self._rank).get("gpus")
        return (
            tuple(map(int, said)) if isinstance(said, list | tuple) else self._planned.plan.hosts[self._rank].gpus or ()
        )

    @on(Table.Highlighted)
    def _moved(self) -> None:
        self._typing.forget()
        self._show_notes()

    def _show_notes(self) -> None:
        self.query_one(StepNotes).tell(totals(self._planned.plan), *self._about())

    def _about(self) -> Iterator[Point]:
        yield from (Point(problem, "$state-failed", "✗ ") for problem in self._draft.problems)
        planned, name = self._planned, self._planned.plan.hosts[self._rank].name
        for finding in planned.findings:
            if finding.host == name and finding.level == "error":
                yield Point(finding.what, "$state-failed", "✗ ")
        yield from (Point(one.text, "$state-slow", "▲ ") for one in planned.recommendation.warnings if one.host == name)
        key = self.query_one(FormTable).key
        reason = "gpus" if key.startswith(_GPU) else _REASONS.get(key, key)
        yield Point(planned.plan.hosts[self._rank].reasons.get(reason, ""), mark=f"{LABELS[reason]:<11}")

    @on(ValueTable.Wanted)
    def _wanted(self, event: ValueTable.Wanted) -> None:
        draft = self._changed(event)
        if draft is not None:
            self._take(self._change(draft))
            self._show()

    def _changed(self, event: ValueTable.Wanted) -> Draft | None:
        draft, rank, key = self._draft, self._rank, event.key
        if key == "num_processes":
            before = self._planned.plan.hosts[rank].num_processes
            if event.by is None:
                self._typing.forget()
            number = None if event.by is None else self._typing.number(event, before)
            return draft.with_processes(rank, number) if event.by is None or number else None
        if event.digit:
            return None
        if key.startswith(_GPU):
            index = int(key.removeprefix(_GPU))
            ticked = sorted({*self._gpus()} ^ {index})
            return draft.with_host(rank, "gpus", None if event.by is None else ticked)
        offered = self._offered(key)
        said = draft.said(rank).get(key)
        at = offered.index(said) if said in offered else 0
        return draft.with_host(rank, key, None if event.by is None else offered[(at + event.by) % len(offered)])

    def _offered(self, key: str) -> list[Any]:
        """None for the recommended value, and the probed values that are valid in a profile."""
        facts = self._facts
        nics = [nic for nic in facts.nics if nic.up]
        found = {
            "interface": [nic.name for nic in nics],
            "address": [address for nic in nics if not nic.loopback for address in nic.addresses],
            "python": [one.path for one in facts.interpreters],
        }[key]
        names = dict.fromkeys([*found, self._draft.said(self._rank).get(key) or found[0]] if found else [])
        return [None, *(one for one in names if not self._draft.with_host(self._rank, key, one).problems)]

    @on(Table.Opened)
    def _opened(self) -> None:
        """Open the input for the path of Python, or close the form on any other row."""
        if self.query_one(FormTable).key != "python":
            self.dismiss()
            return
        self.add_class("-typing")
        line = self.query_one(PathInput)
        line.value = str(self._draft.said(self._rank).get("python") or self._planned.plan.hosts[self._rank].python)
        line.focus()

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        """Apply the path, or show why it is invalid."""
        event.stop()
        draft = self._draft.with_host(self._rank, "python", event.value.strip() or None)
        if draft.problems:
            self.query_one(StepNotes).tell("✗ " + draft.problems[0])
            return
        self._take(self._change(draft))
        self.action_list()

    def action_list(self) -> None:
        """Go back to the values."""
        self.remove_class("-typing")
        self.query_one(FormTable).focus()
        self._show()
