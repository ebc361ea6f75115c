"""Step 3: the number of processes per host, and the plan that follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message

from runner.api.preparing import Planned
from runner.formatting import amount
from runner.planning.advice import Advice
from runner.planning.preflight import Finding
from runner.planning.processes import HostChoice
from tui.keys import OPEN, bind
from tui.widgets.points import Point
from tui.widgets.table import Cell, Column, Row, Table
from tui.wizard.choices import FOR_THE_JOB, SETTINGS, chosen, with_choice
from tui.wizard.draft import Draft, WizardState
from tui.wizard.step import Step, StepNotes
from tui.wizard.values import LABELS, Typing, ValueTable, totals

_SHOWN = ("num_processes", "gpus", "omp_num_threads", "python", "interface", "addresses")


_ELSEWHERE = {
    "total": "The total is the sum of the hosts' processes: change theirs, in the table above",
    "master": "Another master is set in the profile: launch.master",
}
"""Values of the whole run that are not chosen here → where they are."""


class HostValues(ValueTable):
    """The values of each host."""

    PLACE = "the list of hosts"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("values.edit", "e", "edit", "edit host", "this host's GPUs, interface, address, Python", group=OPEN),
    ]

    class Edit(Message):
        """Requests the form of one host."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    def action_edit(self) -> None:
        """Post the request for the host's form."""
        if self.key:
            self.post_message(self.Edit(int(self.key)))


class ProcessesStep(Step):
    """The recommendation, with the reason of every number, and the effect of each change."""

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
        self._typing = Typing()
        self._at_run = False

    def show(self, view: WizardState) -> None:
        """Show the plan of the draft."""
        super().show(view)
        if weighed := view.weighed:
            # The nodes of a job of Slurm are alike: the first stands for all of them.
            choices = weighed.recommendation.hosts[: None if weighed.plan.batch is None else 1]
            self.query_one("#per-host", ValueTable).show([_row(view.draft, one, weighed) for one in choices])
            self.query_one("#whole-run", ValueTable).show(list(_run_rows(view.draft, weighed)))
        self._tell()

    def enter(self) -> None:
        """Focus the hosts."""
        self.query_one("#per-host", ValueTable).focus()

    def leave(self) -> str:
        """Say why the plan is not complete."""
        assert self.view is not None
        return "" if self.view.weighed else "\n".join(self.draft.problems) or "Not all hosts have answered."

    @on(ValueTable.Wanted, "#per-host")
    def _count(self, event: ValueTable.Wanted) -> None:
        weighed = self.view.weighed if self.view else None
        if weighed is None:
            return
        rank = int(event.key)
        number = None
        if event.by is not None:
            number = self._typing.number(event, weighed.recommendation.hosts[rank].num_processes)
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
                f"{event.key} reaches the built-in job, and by the launchers accelerate and accelerate-launch yours; "
                "else give your job an argument",
                severity="warning",
            )
            return
        before = chosen(self.draft, event.key)
        after = words[(words.index(before) + event.by) % len(words)] if event.by is not None else words[0]
        self.post_message(self.Changed(with_choice(self.draft, event.key, after)))

    @on(Table.Highlighted)
    def _moved(self) -> None:
        self._typing.forget()
        self._tell()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Show the notes for the table that has the focus."""
        if isinstance(event.widget, ValueTable):
            self._at_run = event.widget.id == "whole-run"
            self._tell()

    def _tell(self) -> None:
        weighed = self.view.weighed if self.view else None
        notes = self.query_one(StepNotes)
        if weighed is None:
            notes.tell("not decided yet", *(Point(one, "$state-failed", "✗ ") for one in self.draft.problems))
            return
        warnings = len(weighed.recommendation.warnings)
        errors = [_error(one) for one in weighed.findings if one.level == "error"]
        title = (f"✗ {amount(len(errors), 'error')} · " if errors else "") + totals(weighed.plan)
        title += f" · ▲ {warnings} to know" if warnings else ""
        run = self.query_one("#whole-run", ValueTable)
        about = _about_run(run.key, weighed) if self._at_run else self._about_host(weighed)
        # Notes on the row under the cursor come first; the title counts the other errors.
        notes.tell(title, *about, *errors)

    def _about_host(self, weighed: Planned) -> Iterator[Point | str]:
        key = self.query_one("#per-host", ValueTable).key
        if key and int(key) < len(weighed.plan.hosts):
            host = weighed.plan.hosts[int(key)]
            for advice in weighed.recommendation.warnings:
                if advice.host == host.name:
                    yield _warning(advice)
            yield from (
                Point(host.reasons[name], mark=f"{LABELS[name]:<11}") for name in _SHOWN if name in host.reasons
            )
        yield from (_warning(one) for one in weighed.recommendation.warnings if one.host is None)


def _about_run(key: str, weighed: Planned) -> Iterator[Point | str]:
    reasons = weighed.recommendation.reasons
    yield reasons.get("world_size" if key == "total" else key, "")
    if key in SETTINGS and SETTINGS[key].meaning:
        yield SETTINGS[key].meaning
    if key == "total":
        yield f"Accelerate calls this num_machines {len(weighed.plan.hosts)}, num_processes {weighed.plan.world_size}."
    yield from (_warning(one) for one in weighed.recommendation.warnings if one.host is None)


def _error(finding: Finding) -> Point:
    where = f"{finding.host}: " if finding.host else ""
    return Point(f"{where}{finding.what}. {finding.cure}.", "$state-failed", "✗ ")


def _warning(advice: Advice) -> Point:
    return Point(advice.text, "$state-slow", "▲ ")


def _row(draft: Draft, choice: HostChoice, weighed: Planned) -> Row:
    host = weighed.plan.hosts[choice.node_rank]
    profile = draft.profile
    own = profile is not None and profile.hosts[choice.node_rank].num_processes is not None
    last = host.first_rank + host.num_processes - 1
    facts = weighed.facts[choice.node_rank]
    gpus = spans(choice.gpus) if choice.gpus else "none"
    mark: Cell = [("yours", "state--running")] if own else [("auto", "table--muted")]
    crowded = choice.num_processes > (len(choice.gpus) if choice.gpus else facts.cpu.available)
    processes = f"▲ {choice.num_processes}" if crowded else str(choice.num_processes)
    return Row(
        str(choice.node_rank),
        ([(choice.name, "table--strong")],
         [(processes, "state--slow" if crowded else "table--strong")],
         mark, str(last) if host.num_processes == 1 else f"{host.first_rank}-{last}", gpus,
         str(choice.omp_num_threads), str(facts.cpu.available), host.interface or "by route", choice.python),
    )  # fmt: skip


def spans(indices: Sequence[int]) -> str:
    """`0-3,6`."""
    spans: list[list[int]] = []
    for index in indices:
        if spans and spans[-1][-1] == index - 1:
            spans[-1].append(index)
        else:
            spans.append([index])
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans)


def _run_rows(draft: Draft, weighed: Planned) -> Iterator[Row]:
    found = weighed.recommendation
    values = {
        "total": str(found.world_size), "backend": found.backend, "strategy": found.strategy,
        "precision": found.precision, "master": found.master, "launcher": weighed.profile.launch.launcher,
    }  # fmt: skip
    for key, value in values.items():
        own = key in SETTINGS and chosen(draft, key) != SETTINGS[key].words[0]
        if key == "launcher":
            reason = "the profile says so" if own else "starts any script that reads torch's variables"
        else:
            reason = found.reasons["world_size" if key == "total" else key]
        wrong = any(one.level == "error" and one.what.startswith(f"{key} {value}") for one in weighed.findings)
        shown: Cell = [(value, "state--running" if own else "table--strong")]
        if wrong:
            shown = [(f"✗ {value}", "state--failed")]
        yield Row(key, (key, shown, [(reason.removeprefix(f"{value}: "), "table--muted")]))
