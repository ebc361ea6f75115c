"""The screen of the wizard: shows the steps in turn, saves and launches."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.binding import BindingType
from textual.widget import Widget

from disttui.runner.api.carrying import RunCode, collect_code
from disttui.runner.api.checking import PHASE, measure
from disttui.runner.api.library import ReadProfile, script_job
from disttui.runner.api.library_edits import save_at
from disttui.runner.api.preparing import Planned
from disttui.runner.api.rerunning import Again
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import amount
from disttui.runner.hosts.link import Link
from disttui.runner.ids import short
from disttui.runner.library.store import text_of
from disttui.runner.paths import inside
from disttui.runner.planning.checks import Check, CheckReport
from disttui.runner.planning.plan import counts_line
from disttui.runner.render.plan import check_lines, end_lines
from disttui.runner.runs.following import RunControl
from disttui.tui.keys import APP, CHANGE, MOVE, VIEW, bind
from disttui.tui.run.again import SANDBOX
from disttui.tui.screen import Command
from disttui.tui.widgets.choices import Rail
from disttui.tui.widgets.table import Table
from disttui.tui.wizard import sandbox
from disttui.tui.wizard.check import CheckStep, size_words
from disttui.tui.wizard.dialogs import SaveScreen, Starting, start_run
from disttui.tui.wizard.draft import Draft, WizardState, draft_again, make_plan, may_wait, open_draft
from disttui.tui.wizard.hardware import HardwareStep
from disttui.tui.wizard.host_form import HostForm
from disttui.tui.wizard.hosts import HostsStep
from disttui.tui.wizard.hosts_screen import HostsScreen, run_detached
from disttui.tui.wizard.job import JobStep
from disttui.tui.wizard.processes import HostValues, ProcessesStep
from disttui.tui.wizard.step import Step

STEPS: tuple[type[Step], ...] = (HostsStep, HardwareStep, ProcessesStep, JobStep, CheckStep)
LAST = len(STEPS) - 1


class WizardScreen(HostsScreen):
    """Leads from hosts to a running job; opens a new draft unless an argument names another.

    Args:
        profile: The profile to open.
        launch: Whether to connect and check behind a dialog, and to launch if no check fails.
        again: The run to rerun.
        played: Whether to run the built-in job on sandbox hosts.
        script: A local script to run.
    """

    HELP = """Five steps: enter goes to the next, escape to the previous, and nothing is lost on the way. The result is
    a profile as a person would write it; `disttui run FILE` does the same."""
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("wizard.on", "enter", "on", "next", "next step", group=MOVE),
        bind("wizard.launch", "enter,L", "launch", "launch", "confirm, then start the run", group=CHANGE,
             priority=True),
        bind("wizard.when_free", "w", "when_free", "when free",
             "queue it until leased GPUs are free; again: undo", group=CHANGE),
        bind("wizard.measure", "m", "measure", "measure",
             "measure ranks and network instead of starting", group=CHANGE, show=False),
        bind("wizard.again", "r", "ask_again", "check again", "probe the hosts again", group=VIEW),
        bind("wizard.save", "s,ctrl+s", "save", "save", "save the profile", group=CHANGE),
        bind("wizard.checks", "enter", "checks", "checks", "show only the checks", group=VIEW),
        bind("screen.back", "escape,q", "back", "back", "previous step; at the first, leave the wizard",
             group=APP),
    ]  # fmt: skip

    DEFAULT_CSS = """
    WizardScreen {
        Rail { margin: 0 0 1 0; }
        .main { height: 1fr; }
        #step-hardwarestep .main, #step-processesstep .main, #hardware-table, #per-host { height: auto; }
        #hardware-table { max-height: 45vh; }
        #per-host { max-height: 30vh; }
        #whole-run { height: 8; border-top: solid $rule; }
        #check-panes Pane { display: none; height: 1fr; padding: 0 1; border: none; scrollbar-size: 1 1; }
        #check-panes Pane.-current { display: block; }
    }
    WizardScreen.-short {
        Rail { margin: 0; }
        HostsStep StepNotes, JobStep StepNotes { height: 4; min-height: 4; }
        #whole-run { height: 3; border-top: none; }
    }
    WizardScreen.-wide {
        Step { layout: horizontal; }
        .main, #step-hardwarestep .main, #step-processesstep .main { width: 3fr; height: 100%; }
        StepNotes, HostsStep StepNotes, JobStep StepNotes { width: 2fr; height: 100%; max-height: 100%; padding: 0 2; }
        #hardware-table, #per-host { max-height: 70%; }
        #step-checkstep { layout: vertical; }
        #tabs { display: none; }
        #check-panes { layout: grid; grid-size: 2; grid-columns: 2fr 3fr; grid-rows: auto 1fr; grid-gutter: 0 1; }
        #check-panes Pane { display: block; height: 100%; border-top: solid $rule; border-title-color: $muted; }
        #check-panes Pane:focus { border-top: solid $accent; border-title-color: $accent; border-title-style: bold; }
        #pane-checks { max-height: 60vh; }
        #pane-commands { row-span: 2; }
    }
    WizardScreen.-wide.-tall { #whole-run { margin: 1 0 0 0; } #pane-checks { max-height: 70vh; } }
    Starting { display: none; }
    WizardScreen.-hurry {
        & > * { display: none; }
        & > Starting { display: block; }
    }
    """

    def __init__(
        self,
        profile: ReadProfile | None = None,
        launch: bool = False,
        again: Again | None = None,
        played: bool = False,
        script: Path | None = None,
    ) -> None:
        super().__init__()
        self._played = played
        self._script = script
        self._again = again
        self._given = profile
        self.set_class(launch, "-hurry")
        self._at = 0
        self._saved: Mapping[str, object] = self._view.draft.data
        self._launching = False
        self._beside: Path | None = None
        """Where the profile was saved in place of the named file, which another person has changed."""
        self._offered = False, False
        """Whether the footer shows the keys that queue and launch."""

    def body(self) -> Iterable[Widget]:
        """Yield the rail, the steps, and the dialog that hides them during an immediate start."""
        yield Rail([step.TITLE for step in STEPS])
        yield from (step() for step in STEPS)
        yield Starting()

    def on_mount(self) -> None:
        """Search for hosts, and open the draft that the arguments name."""
        self._discover()
        if self._again is not None:
            self._edit(draft_again(self._again))
        elif self._played:
            self._edit(self._view.draft.with_hosts(SANDBOX, sandbox=True))
        elif self._script is not None:
            self._edit(self._view.draft.put(("job",), script_job(self._script)))
        elif self._given is None:
            self._go(0)
        else:
            self._open(self._given)

    def commands(self) -> Iterator[Command]:
        for number, step in enumerate(STEPS):
            yield Command(f"Step {number + 1}: {step.TITLE}", "of the wizard", partial(self._try, number))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer launch and save only in the last step."""
        if action == "checks":
            return self._hurry
        if action == "on":
            return self._at < LAST and not self._hurry
        if action in ("launch", "measure", "save", "when_free", "ask_again"):
            if action == "when_free" and not (self._view.may_wait or self._view.queued):
                return False
            here = self._at == LAST and not self._launching and not self._hurry
            here &= action not in ("launch", "measure") or self._view.startable
            return here and super().check_action(action, parameters) is True
        return super().check_action(action, parameters)

    # Walking

    @property
    def _step(self) -> Step:
        return self.query(Step)[self._at]

    def action_on(self) -> None:
        self._try(self._at + 1)

    async def action_back(self) -> None:
        """Go to the previous step, or leave the wizard from the first."""
        if self._at == 0 or self._hurry:
            self._leave()
        else:
            self._go(self._at - 1)

    def _try(self, wanted: int) -> None:
        """Go to a step, or to the first incomplete one before it."""
        if not self._step.has_class("-current"):
            return  # a key typed before the first step is shown
        while self._at < min(wanted, LAST):
            if why := self._step.leave():
                self.notify(why, severity="warning")
                return
            self._go(self._at + 1)
        if wanted < self._at:
            self._go(wanted)

    def _go(self, step: int) -> None:
        self._at = step
        for number, one in enumerate(self.query(Step)):
            one.set_class(number == step, "-current")
        self.query_one(Rail).go(step)
        if step == LAST:
            self._ask_again()
            self._read_code()
        self._show()
        self._step.enter()
        self.refresh_bindings()

    @work(group="leave", exclusive=True)
    async def _leave(self) -> None:
        if self._launching:
            measures = self.query_one(CheckStep).busy == "measuring"
            words = "Measuring; wait for the result" if measures else "Starting; its dashboard opens next"
            self.notify(words, severity="warning")
            return
        unsaved = self._view.draft.data != self._saved and self._view.draft.hosts
        if unsaved and not await self.disttui.ask("Leave the wizard?", "Your changes are not saved.", "leave"):
            return
        # Not awaited, because closing the screen waits for its workers, including this one.
        self.app.pop_screen()

    @on(Step.GoOn)
    @on(Table.Opened)
    def _entered(self) -> None:
        if self._at < LAST:
            self.action_on()

    @on(Rail.Chosen)
    def _chosen(self, event: Rail.Chosen) -> None:
        self._try(event.step)

    # The draft

    def _open(self, found: ReadProfile) -> None:
        try:
            draft = open_draft(found, self.disttui.environ)
        except InputError as error:
            self.notify(str(error), severity="error")
            self.action_checks()
            self._go(0)
            return
        self._edit(draft)

    def _edit(self, draft: Draft) -> None:
        self._saved = draft.data
        self._take(draft)
        self._go(LAST if draft.hosts else 0)

    def _show(self) -> None:
        planned = make_plan(self._view, self.disttui.environ)
        view = replace(self._view, planned=planned)
        self._view = view = replace(view, may_wait=may_wait(view, self.disttui.environ))
        if (view.may_wait, view.startable) != self._offered:
            self._offered = view.may_wait, view.startable
            self.refresh_bindings()
        facts = [amount(len(view.draft.hosts), "host")] if view.draft.hosts else []
        if view.planned and view.planned.plan.batch is not None:
            facts = [amount(len(view.planned.plan.hosts), "node")]
        if view.planned:
            facts.append(amount(view.planned.plan.world_size, "process"))
            facts.append(view.planned.plan.backend)
        facts += ["sandbox"] if view.draft.sandbox else []
        if view.draft.again:
            resumes = view.draft.again.resume_from is not None
            facts.insert(0, f"{'resumes' if resumes else 'reruns'} {short(view.draft.again.run)}")
        name = view.draft.title if view.draft.hosts else ""
        self.header.show(name or "new profile", facts, right=f"step {self._at + 1} of {len(STEPS)}")
        self._step.show(view)
        self._show_whether_to_start()

    @on(HostValues.Edit)
    def _edit_host(self, event: HostValues.Edit) -> None:
        self.app.push_screen(HostForm(event.rank, self._view, self._change))

    def _change(self, draft: Draft) -> WizardState:
        self._take(draft)
        self._show()
        return self._view

    @work(group="code", exclusive=True)
    async def _read_code(self) -> None:
        """Read the code to send, so that omissions are known before the start, which reads it again."""
        draft, left = self._view.draft, threading.Event()
        profile = None if self._hurry else draft.profile
        if profile is not None and profile.job.sync is None:
            profile = None
        code: RunCode | DisttuiError | None = draft.again.code if draft.again and profile else None
        self._view = replace(self._view, code=code)

        def tell(_: str) -> None:
            if left.is_set():
                raise CancelledError  # the screen is closed, or another folder is being read

        if profile is not None and code is None:
            try:
                code = await asyncio.to_thread(collect_code, profile, self.disttui.environ, tell=tell)
            except DisttuiError as error:
                code = error
            finally:
                left.set()
            self._view = replace(self._view, code=code)
        self._show()

    # Save and launch

    @work(group="save", exclusive=True)
    async def action_save(self) -> None:
        """Ask where to save, and save the profile."""
        draft = self._view.draft
        path = await self.app.push_screen_wait(SaveScreen(draft, partial(self._save, draft)))
        if path is None:
            return
        path, self._beside = self._beside or path, None
        self._saved = draft.data
        self._view = replace(self._view, draft=replace(draft, path=path, old=draft.text, named=True))
        self.notify(f"saved: {path}")
        self._show()

    # Launching behind a dialog

    @property
    def _hurry(self) -> bool:
        return self.has_class("-hurry")

    @on(Starting.ChecksWanted)
    def action_checks(self) -> None:
        """Show the steps; from then on, only a key starts the run."""
        if self._hurry:
            self.remove_class("-hurry")
            self._read_code()
            self.call_after_refresh(self._step.enter)
            self._show()
            self.refresh_bindings()

    @on(Starting.Left)
    async def _give_up(self) -> None:
        await self.action_back()

    def _show_whether_to_start(self) -> None:
        view, startable = self._view, self._at == LAST and self._view.startable and not self._launching
        if self._hurry:
            self.query_one(Starting).show(view, self.query_one(CheckStep).busy)
            if view.stuck or self.disttui.read_only:
                self.action_checks()
            elif startable:
                self._begin()

    @work(group="ask", exclusive=True)
    async def action_launch(self) -> None:
        """Ask, then start the run; enter also leads here, so a second key press must not start anything."""
        question = self._launch_question()
        if question and await self.disttui.ask(*question) and question == self._launch_question():
            self._begin()

    def _launch_question(self) -> tuple[str, str, str] | None:
        """The question, its consequence and the answer that starts the run; None if it cannot be started now."""
        view = self._view
        if self._at != LAST or self._launching or not view.startable or view.planned is None:
            return None
        verb = "queue" if view.queued else "start"
        kept = "It keeps running after you quit disttui."
        if view.draft.sandbox:
            kept = "It ends when you quit disttui, with its sandbox."
        elif view.queued:
            kept = "It waits in the queue, and starts even after you quit disttui."
        return f"{verb.capitalize()} {size_words(view.planned)}?", f"{counts_line(view.planned.plan)}.\n{kept}", verb

    @work(group="ask", exclusive=True)
    async def action_measure(self) -> None:
        """Ask, then measure ranks and network; the last step shows the result until the draft changes."""
        planned, step = self._view.planned, self.query_one(CheckStep)
        if planned is None or planned.plan.batch is not None or not await self.disttui.ask(
            f"Measure {size_words(planned)}?",
            "Its ranks run a measurement of up to 30 s instead of the job.", "measure",
        ):  # fmt: skip
            return
        self._launching, step.busy = True, "measuring"
        self._show()
        self.refresh_bindings()
        try:
            step.measured = planned.profile, await asyncio.to_thread(self._measure, planned)
        finally:
            self._launching, step.busy = False, ""
            self._show()
            self.refresh_bindings()

    def _measure(self, planned: Planned) -> list[str]:
        found: list[Check] = []
        report = CheckReport(tuple(host.name for host in planned.profile.hosts))
        control, over = RunControl(), threading.Event()

        def end() -> None:
            if not over.is_set():
                control.stops = 2
                sys.stderr.write("disttui: stopping the measurement\n")
                over.wait(PHASE)

        self.disttui.at_end.insert(0, end)  # must run before the hosts of a sandbox end
        try:
            done = measure(self._viewer(), planned.profile, found.append, control=control)
        finally:
            over.set()
        report = replace(report, checks=tuple(found), figures=done.figures, advice=done.advice)
        lines = [line for one in found for line in check_lines(one)]
        return [*lines, *(line for text in end_lines(report) for line in text.splitlines())]

    def action_ask_again(self) -> None:
        """Probe the hosts and read the code again, after a change there."""
        self._ask_again()
        self._read_code()
        self._show()

    def action_when_free(self) -> None:
        """Toggle whether the run is queued until leased GPUs are free."""
        self._view = replace(self._view, queued=not self._view.queued)
        self._show()

    def _begin(self) -> None:
        assert self._view.planned is not None
        self._launching, self.query_one(CheckStep).busy = True, "starting on its hosts"
        self._start_run(self._view, self._view.planned)
        self._show()
        self.refresh_bindings()  # launching again and saving are not offered during a start

    @work(group="launch")
    async def _start_run(self, view: WizardState, planned: Planned) -> None:
        """Start the run, and open its dashboard."""
        links = {state.name: state.link for state in view.of_hosts() if state.link}
        try:
            run = await asyncio.to_thread(self._launch, links, view)
        except DisttuiError as error:
            self.notify(str(error), severity="error", timeout=20)
            self._launching, self.query_one(CheckStep).busy = False, ""
            self.action_checks()
            self._show()
            self.refresh_bindings()
            return
        kept = self._prober.keep_links()
        if view.draft.sandbox:
            nodes = dict(enumerate(kept[name] for name in view.draft.hosts))
            sandbox.end_with_app(run, planned.profile.launch.run_dir, nodes)
        else:
            run_detached(partial(_close, kept.values()))
        if self.app.screen is not self:  # for example the help, or a question about a host
            self.notify(f"{short(run)} has started: its dashboard opens when you close this")
        again = view.draft.again
        self.disttui.router.open_run(run, instead=self, repeats=again.run if again else "")

    async def _save(self, draft: Draft, path: Path) -> str:
        """Save the draft to a path; return the error, or an empty text if it was saved."""
        same = draft.path is not None and path == draft.path
        try:
            if await asyncio.to_thread(path.is_dir):
                return f"{path}: this is a folder; name a file in it"
            if not same and await asyncio.to_thread(path.exists):
                if not await self.disttui.ask(f"Replace {path.name}?", f"{path} already exists.", "replace"):
                    return f"{path.name} already exists"
                same = True
            # A confirmed file is replaced, but not a concurrent edit by another person: `before` detects it.
            before = draft.old if path == draft.path else await asyncio.to_thread(text_of, path) if same else None
            saved = await asyncio.to_thread(save_at, path, draft.text, before, self.disttui.environ)
            if saved and saved.other:
                self._beside = inside(saved.path.parent, saved.other.rpartition("/")[2] + saved.path.suffix)
                self.notify(f"conflict: {path.name} has changed, so yours has another name", severity="warning")
            elif saved and saved.commit:
                self.notify("saved in your clone; S in the home screen's profiles pane pushes it")
        except InputError as error:
            return str(error)
        except OSError as error:
            return f"{path}: {error.strerror}"
        return ""

    def _launch(self, links: Mapping[str, Link], view: WizardState) -> str:
        assert view.planned is not None
        tell, sends = (partial(self.app.call_from_thread, take) for take in (self._progress, self._sends))
        return start_run(self._viewer(), view.draft, view.planned, links, tell, sends)

    def _sends(self, code: RunCode) -> None:
        """Report omissions of code if the checks were not shown."""
        if self._hurry and (code.omitted or code.pointers or not code.files):
            self.notify("\n".join(code.lines()[:4]), severity="warning")

    def _progress(self, words: str) -> None:
        if self._launching:
            self.query_one(CheckStep).busy = words
            self._show()


def _close(links: Iterable[Link]) -> None:
    for link in links:
        link.close()
