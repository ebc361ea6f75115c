"""Step 3: the number of processes per host, and the resulting plan; the table of values that keys change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message

from disttui.runner.api.preparing import Planned
from disttui.runner.formatting import amount, ranges
from disttui.runner.planning.plan import Plan
from disttui.runner.planning.preflight import Finding
from disttui.runner.planning.processes import HostChoice
from disttui.runner.planning.recommend import Advice
from disttui.tui.keys import MOVES, OPEN, bind
from disttui.tui.widgets.points import Point
from disttui.tui.widgets.table import Cell, Column, Row, Table
from disttui.tui.wizard.draft import FOR_THE_JOB, SETTINGS, Draft, WizardState, chosen, with_choice
from disttui.tui.wizard.step import Step, StepNotes

MOST = 1024
"""Maximum number of processes on one host."""
LABELS = {
    "num_processes": "processes", "omp_num_threads": "threads", "gpus": "GPUs", "python": "Python",
    "interface": "interface", "addresses": "addresses",
}  # fmt: skip
"""Field of `disttui.runner.planning.processes.HostChoice` → its label."""


class ValueTable(Table, inherit_bindings=False):
    """A table of values that keys change."""

    PLACE = "the list of values"
    BINDINGS: ClassVar[list[BindingType]] = [
        # All of a table's keys again, because the footer has room only for the first ones.
        bind("values.less", "left,minus,h", "change(-1)", "less", "less, or previous choice", group=OPEN),
        bind("values.more", "right,plus,l", "change(1)", "more", "more, or next choice", group=OPEN),
        bind("table.open", "enter", "open", "next", "next step", group=OPEN),
        *MOVES,
        bind("values.auto", "a", "decided", "auto", "use the recommended value", group=OPEN),
        bind("values.digit", "0,1,2,3,4,5,6,7,8,9", "digit", "number", "type a number", group=OPEN, show=False),
    ]

    class Wanted(Message):
        """Requests another value: changed by `by`, extended by a digit, or the recommended one if `by` is None."""

        def __init__(self, table: ValueTable, key: str, by: int | None, digit: str = "") -> None:
            super().__init__()
            self.table, self.key, self.by, self.digit = table, key, by, digit

        @property
        def control(self) -> ValueTable:
            return self.table

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer changes only if there is a row."""
        changes = action in ("change", "decided", "digit", "edit")
        return super().check_action("open" if changes else action, parameters)

    def action_change(self, by: int) -> None:
        self._want(by)

    def action_decided(self) -> None:
        self._want(None)

    def on_key(self, event: events.Key) -> None:
        if event.character and event.character in "0123456789":
            event.stop()
            event.prevent_default()
            self._want(0, event.character)

    def action_digit(self) -> None:
        """Do nothing: `on_key` handles digits, and the binding is only for the help."""

    def _want(self, by: int | None, digit: str = "") -> None:
        if self.key:
            self.post_message(self.Wanted(self, self.key, by, digit))


class NumberEntry:
    """A number of processes that is typed digit by digit, or changed step by step."""

    def __init__(self) -> None:
        self._typed = ("", "")

    def forget(self) -> None:
        """Begin a new number with the next digit."""
        self._typed = ("", "")

    def number(self, wanted: ValueTable.Wanted, before: int) -> int | None:
        """The number after a request; None if it is not from 1 to MOST."""
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
    """The processes of a plan as text: `node1 4 + node2 2 = 6 processes`."""
    counts = " + ".join(f"{one.name} {one.num_processes}" for one in plan.hosts[:12])
    return f"{counts}{' + …' if len(plan.hosts) > 12 else ''} = {amount(plan.world_size, 'process')}"


_SHOWN = ("num_processes", "gpus", "omp_num_threads", "python", "interface", "addresses")


_ELSEWHERE = {
    "total": "The total is the sum over the hosts: change their processes in the table above",
    "master": "Set launch.master in the profile to use another master",
}
"""Value of the whole run that is set elsewhere → how to set it."""


class HostValues(ValueTable):
    """The table of the hosts' values, with one row per host."""

    PLACE = "the list of hosts"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("values.edit", "e", "edit", "edit host", "this host's GPUs, interface, address, Python", group=OPEN)
    ]

    class Edit(Message):
        """Requests the form of one host."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    def action_edit(self) -> None:
        if self.key:
            self.post_message(self.Edit(int(self.key)))


class ProcessesStep(Step):
    """The recommendation with the reason for every number, and the effect of each change."""

    TITLE = "Processes"
    HOSTS: ClassVar[Sequence[Column]] = (
        Column("host", most=28), Column("processes", "right"), Column("", most=6), Column("ranks", "right"),
        Column("GPUs", most=18), Column("threads", "right", rank=1), Column("cores", "right", rank=2),
        Column("interface", rank=3, most=12), Column("Python", rank=4, most=80, grows=True, least=24),
    )  # fmt: skip
    RUN: ClassVar[Sequence[Column]] = (
        Column("whole run"), Column("is", most=24), Column("because", most=200, grows=True)
    )  # fmt: skip

    def compose(self) -> ComposeResult:
        """Yield the tables of hosts and of the whole run, and the reasons."""
        with Vertical(classes="main"):
            yield HostValues(self.HOSTS, id="per-host")
            yield ValueTable(self.RUN, id="whole-run")
        yield StepNotes()

    def __init__(self) -> None:
        super().__init__()
        self._typing = NumberEntry()
        self._at_run = False

    def show(self, view: WizardState) -> None:
        super().show(view)
        if planned := view.planned:
            # The nodes of a Slurm job are alike, so the first represents all.
            choices = planned.recommendation.hosts[: None if planned.plan.batch is None else 1]
            self.query_one("#per-host", ValueTable).show([_row(view.draft, one, planned) for one in choices])
            self.query_one("#whole-run", ValueTable).show(list(_run_rows(view.draft, planned)))
        else:  # a host that has failed has no values to change; those of the whole run may be the cause
            self.query_one("#per-host", ValueTable).show([])
        self._show_notes()

    def enter(self) -> None:
        self.query_one("#per-host", ValueTable).focus()

    def leave(self) -> str:
        """Return why there is no plan; empty if there is one."""
        return "" if self.view.planned else "\n".join(self.draft.problems) or "Not all hosts have answered."

    @on(ValueTable.Wanted, "#per-host")
    def _count(self, event: ValueTable.Wanted) -> None:
        planned = self.view.planned
        if planned is None:
            return
        rank = int(event.key)
        number = None
        if event.by is None:
            self._typing.forget()
        else:
            number = self._typing.number(event, planned.recommendation.hosts[rank].num_processes)
            if number is None:
                return
        self.post_message(self.Changed(self.draft.with_processes(rank, number)))

    @on(ValueTable.Wanted, "#whole-run")
    def _choice(self, event: ValueTable.Wanted) -> None:
        if event.key in _ELSEWHERE:
            self.notify(_ELSEWHERE[event.key], severity="warning")
        if event.key not in SETTINGS or event.digit:
            return
        words = SETTINGS[event.key].words
        if event.key in FOR_THE_JOB and not self.draft.divides_job:
            self.notify(
                f"{event.key} applies to the built-in job, and to yours with launcher accelerate or "
                "accelerate-launch; otherwise use an argument of your job",
                severity="warning",
            )
            return
        before = chosen(self.draft, event.key)
        after = words[(words.index(before) + event.by) % len(words)] if event.by is not None else words[0]
        self.post_message(self.Changed(with_choice(self.draft, event.key, after)))

    @on(Table.Highlighted)
    def _moved(self) -> None:
        self._typing.forget()
        self._show_notes()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if isinstance(event.widget, ValueTable):
            self._at_run = event.widget.id == "whole-run"
            self._show_notes()

    def _show_notes(self) -> None:
        planned = self.view.planned
        notes = self.query_one(StepNotes)
        if planned is None:
            hosts = self.view.of_hosts()
            problems = [*self.draft.problems, *(f"{one.name} cannot be used: see step 2" for one in hosts if one.error)]
            missing = [f"{one.name} has not answered yet" for one in hosts if one.pending]
            notes.tell("not decided yet", *(Point(one, "$state-failed", "✗ ") for one in problems), *missing)
            return
        warnings = len(planned.recommendation.warnings)
        errors = [_error(one) for one in planned.findings if one.level == "error"]
        title = (f"✗ {amount(len(errors), 'error')} · " if errors else "") + totals(planned.plan)
        title += f" · ▲ {amount(warnings, 'warning')}" if warnings else ""
        run = self.query_one("#whole-run", ValueTable)
        about = list(_about_run(run.key, planned)) if self._at_run else [*errors, *self._about_host(planned)]
        if self._at_run:
            # The explanation of the value under the cursor comes first, then errors, then warnings.
            about += [*errors, *map(_warning, (one for one in planned.recommendation.warnings if one.host is None))]
        notes.tell(title, *about)

    def _about_host(self, planned: Planned) -> Iterator[Point | str]:
        key = self.query_one("#per-host", ValueTable).key
        if key and int(key) < len(planned.plan.hosts):
            host = planned.plan.hosts[int(key)]
            for advice in planned.recommendation.warnings:
                if advice.host == host.name:
                    yield _warning(advice)
            yield from (
                Point(host.reasons[name], mark=f"{LABELS[name]:<11}") for name in _SHOWN if name in host.reasons
            )
        yield from (_warning(one) for one in planned.recommendation.warnings if one.host is None)


def _about_run(key: str, planned: Planned) -> Iterator[Point | str]:
    reasons = planned.recommendation.reasons
    yield reasons.get("world_size" if key == "total" else key, "")
    if key in SETTINGS and SETTINGS[key].meaning:
        yield SETTINGS[key].meaning
    if key == "total":
        yield f"Accelerate calls this num_machines {len(planned.plan.hosts)}, num_processes {planned.plan.world_size}."


def _error(finding: Finding) -> Point:
    where = f"{finding.host}: " if finding.host else ""
    return Point(f"{where}{finding.what}. {finding.cure}.", "$state-failed", "✗ ")


def _warning(advice: Advice) -> Point:
    return Point(advice.text, "$state-slow", "▲ ")


def _row(draft: Draft, choice: HostChoice, planned: Planned) -> Row:
    host = planned.plan.hosts[choice.node_rank]
    profile = draft.profile
    own = profile is not None and profile.hosts[choice.node_rank].num_processes is not None
    last = host.first_rank + host.num_processes - 1
    facts = planned.facts[choice.node_rank]
    gpus = ranges(choice.gpus, ",") if choice.gpus else "none"
    mark: Cell = [("yours", "state--running")] if own else [("auto", "muted")]
    crowded = choice.num_processes > (len(choice.gpus) if choice.gpus else facts.cpu.available)
    processes = f"▲ {choice.num_processes}" if crowded else str(choice.num_processes)
    return Row(
        str(choice.node_rank),
        ([(choice.name, "strong")],
         [(processes, "state--slow" if crowded else "strong")],
         mark, str(last) if host.num_processes == 1 else f"{host.first_rank}-{last}", gpus,
         str(choice.omp_num_threads), str(facts.cpu.available), host.interface or "by route", choice.python),
    )  # fmt: skip


def _run_rows(draft: Draft, planned: Planned) -> Iterator[Row]:
    found = planned.recommendation
    values = {
        "total": str(found.world_size), "backend": found.backend, "strategy": found.strategy,
        "precision": found.precision, "master": found.master, "launcher": planned.profile.launch.launcher,
    }  # fmt: skip
    for key, value in values.items():
        own = key in SETTINGS and chosen(draft, key) != SETTINGS[key].words[0]
        if key == "launcher":
            reason = "set by you" if own else "for scripts that read torch's variables"
        else:
            reason = found.reasons["world_size" if key == "total" else key]
        wrong = any(one.level == "error" and one.what.startswith(f"{key} {value}") for one in planned.findings)
        shown: Cell = [(value, "state--running" if own else "strong")]
        if wrong:
            shown = [(f"✗ {value}", "state--failed")]
        yield Row(key, (key, shown, [(reason.removeprefix(f"{value}: "), "muted")]))
