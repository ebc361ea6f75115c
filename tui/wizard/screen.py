"""The screen of the wizard: shows the steps in turn, saves and launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.binding import BindingType
from textual.widget import Widget

from runner.api.library import ReadProfile
from runner.api.library_edits import save_at
from runner.api.preparing import Planned
from runner.api.rerunning import Again
from runner.errors import DisttuiError, InputError
from runner.hosts.link import Link
from runner.ids import short
from runner.library.files import text_of
from tui.dialogs.calm import Calm
from tui.keys import APP, CHANGE, MOVE, VIEW, bind
from tui.screen import Command
from tui.widgets.rail import Rail
from tui.widgets.table import Table
from tui.wizard import sandbox
from tui.wizard.check import CheckStep
from tui.wizard.draft import Draft, WizardState, draft_again, may_wait, open_draft, planned
from tui.wizard.hardware import HardwareStep
from tui.wizard.host_form import HostForm
from tui.wizard.hosts import HostsStep
from tui.wizard.hosts_screen import HostsScreen
from tui.wizard.job import JobStep
from tui.wizard.launching import start_run
from tui.wizard.processes import HostValues, ProcessesStep
from tui.wizard.reach import apart, aside
from tui.wizard.save import SaveScreen
from tui.wizard.starting import Starting
from tui.wizard.step import Step, count

STEPS: tuple[type[Step], ...] = (HostsStep, HardwareStep, ProcessesStep, JobStep, CheckStep)
LAST = len(STEPS) - 1


class WizardScreen(HostsScreen):
    """From hosts to a running training.

    Args:
        profile: The file to open.
        launch: Connect and check behind a dialog over the screen before, and launch if no check fails.
        text: The file's text as the user saw it; None: read it now.
        again: The run to run again, instead of a file.
    """

    HELP = """Five steps, walked both ways: enter goes on, escape goes back, and nothing is lost on the way. What you
    see at the end is the file that a person would write; `disttui run FILE` does the same."""
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("wizard.on", "enter", "on", "go on", "go on to the next step", group=MOVE),
        bind("wizard.launch", "enter,L", "launch", "launch", "start the run on all hosts", group=CHANGE, priority=True),
        bind(
            "wizard.when_free",
            "w",
            "when_free",
            "when free",
            "have it wait for what others have leased, and start by itself; once more: no longer",
            group=CHANGE,
        ),
        bind("wizard.save", "s,ctrl+s", "save", "save", "save the profile", group=CHANGE),
        bind("wizard.checks", "enter", "checks", "checks", "show the checks, and start nothing by itself", group=VIEW),
        bind(
            "screen.back",
            "escape,q",
            "back",
            "back",
            "to the step before; at the first: leave the wizard",
            group=APP,
        ),
    ]

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

    def __init__(self, profile: ReadProfile | None = None, launch: bool = False, again: Again | None = None) -> None:
        super().__init__()
        self._again = again
        self._given = profile
        self.set_class(launch, "-hurry")
        self._at = 0
        self._calm = Calm()
        """Decides whether "enter starts it" has been readable long enough."""
        self._saved: Mapping[str, object] = self._view.draft.data
        self._launching = False

    def body(self) -> Iterable[Widget]:
        """Yield the rail and the steps, and the dialog that is shown while they are hidden."""
        yield Rail([step.TITLE for step in STEPS])
        yield from (step() for step in STEPS)
        yield Starting()

    def on_mount(self) -> None:
        """Open the file, look for hosts."""
        self._discover()
        if self._again is not None:
            self._edit(draft_again(self._again))
        elif self._given is None:
            self._go(0)
        else:
            self._open(self._given)

    def commands(self) -> Iterator[Command]:
        """Yield a command for every step."""
        for number, step in enumerate(STEPS):
            yield Command(f"Step {number + 1}: {step.TITLE}", "of the wizard", partial(self._try, number))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer launch and save in the last step only."""
        if action == "checks":
            return self._hurry
        if action == "on":
            return self._at < LAST and not self._hurry
        if action in ("launch", "save", "when_free"):
            if action == "when_free" and not (self._view.may_wait or self._view.queued):
                return False
            here = self._at == LAST and not self._launching and not self._hurry
            here &= action != "launch" or self._view.startable
            return here and super().check_action(action, parameters) is True
        return super().check_action(action, parameters)

    # Walking

    @property
    def _step(self) -> Step:
        return self.query(Step)[self._at]

    def action_on(self) -> None:
        """Go to the next step."""
        self._try(self._at + 1)

    async def action_back(self) -> None:
        """Go to the step before; from the first, leave the wizard."""
        if self._at == 0 or self._hurry:
            self._leave()
        else:
            self._go(self._at - 1)

    def _try(self, wanted: int) -> None:
        """Go to a step, or to the first before it that is not complete."""
        if self._step.view is None:
            return  # a key that was typed before the first step is shown
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
        self._show()
        self._step.enter()
        self.refresh_bindings()

    @work(group="leave", exclusive=True)
    async def _leave(self) -> None:
        if self._launching:
            self.notify("It is being started: its dashboard comes next", severity="warning")
            return
        unsaved = self._view.draft.data != self._saved and self._view.draft.hosts
        if unsaved and not await self.disttui.ask("Leave the wizard?", "What you have chosen is not saved.", "leave"):
            return
        # Not awaited: closing the screen waits for its workers, such as this one.
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
            draft = open_draft(found)
        except InputError as error:
            self.notify(str(error), severity="error")
            self.action_checks()
            self._go(0)
            return
        self._edit(draft)

    def _edit(self, draft: Draft) -> None:
        self._saved = draft.data
        self._take(draft)
        self._go(LAST)

    def _show(self) -> None:
        offered = self._view.may_wait, self._view.startable
        weighed = planned(self._view, self.disttui.environ)
        view = replace(self._view, weighed=weighed)
        self._view = view = replace(view, may_wait=may_wait(view, self.disttui.environ))
        if (view.may_wait, view.startable) != offered:
            self.refresh_bindings()
        facts = [count(len(view.draft.hosts), "host")] if view.draft.hosts else []
        if view.weighed and view.weighed.plan.batch is not None:
            facts = [count(len(view.weighed.plan.hosts), "node")]
        if view.weighed:
            facts.append(count(view.weighed.plan.world_size, "process"))
            facts.append(view.weighed.plan.backend)
        facts += ["sandbox"] if view.draft.sandbox else []
        if view.draft.again:
            goes_on = view.draft.again.resume_from is not None
            facts.insert(0, f"{'goes on from' if goes_on else 'again'} {short(view.draft.again.run)}")
        name = str(view.draft.data.get("name") or "new profile") if view.draft.hosts else "new profile"
        self.header.show(name, facts, right=f"step {self._at + 1} of {len(STEPS)}")
        self._step.show(view)
        self._show_whether_to_start()

    @on(HostValues.Edit)
    def _edit_host(self, event: HostValues.Edit) -> None:
        self.app.push_screen(HostForm(event.rank, self._view, self._change))

    def _change(self, draft: Draft) -> WizardState:
        self._take(draft)
        self._show()
        return self._view

    # Save and launch

    @work(group="save", exclusive=True)
    async def action_save(self) -> None:
        """Ask where, and save."""
        draft = self._view.draft
        path = await self.app.push_screen_wait(SaveScreen(draft, partial(self._save, draft)))
        if path is None:
            return
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
        """Show the steps; from now on only a key starts the run."""
        if self._hurry:
            self.remove_class("-hurry")
            self.call_after_refresh(self._step.enter)
            self._show()
            self.refresh_bindings()

    @on(Starting.Left)
    async def _give_up(self) -> None:
        await self.action_back()

    def _show_whether_to_start(self) -> None:
        view, startable = self._view, self._at == LAST and self._view.startable and not self._launching
        if self._hurry:
            self.query_one(Starting).show(view, self._launching)
            if view.stuck or self.disttui.read_only:
                self.action_checks()
            elif startable:
                self._begin()
        elif not startable:
            self._calm.end()
            self.query_one(CheckStep).too_soon = False
        elif not self._calm.begun:
            self.call_after_refresh(self._calm.begin)

    @property
    def heeds_launch(self) -> bool:
        """Whether the key that starts the run has an effect now."""
        return self._calm.ready

    def action_launch(self) -> None:
        """Start the run, if the key was typed after the checks could be read."""
        if self._calm.heeds(self.disttui.typed_at):
            self._begin()
        else:
            self.query_one(CheckStep).too_soon = True
            self._show()

    def action_when_free(self) -> None:
        """Have the run wait for what others have leased, or no longer."""
        self._view = replace(self._view, queued=not self._view.queued)
        self._show()

    def _begin(self) -> None:
        assert self._view.weighed is not None
        self._launching, self.query_one(CheckStep).busy = True, "starting"
        self._start_run(self._view, self._view.weighed)
        self._show()
        self.refresh_bindings()  # what is being started is neither launched again nor saved

    @work(group="launch")
    async def _start_run(self, view: WizardState, weighed: Planned) -> None:
        """Start the run, and show it."""
        links = {state.name: state.link for state in view.of_hosts() if state.link}
        try:
            run = await aside(partial(self._launch, links, view))
        except DisttuiError as error:
            self.notify(str(error), severity="error", timeout=20)
            self._launching, self.query_one(CheckStep).busy = False, ""
            self.action_checks()
            self._show()
            self.refresh_bindings()
            return
        kept = self._reach.keep_links()
        if view.draft.sandbox:
            nodes = dict(enumerate(kept[name] for name in view.draft.hosts))
            sandbox.end_with_app(run, weighed.profile.launch.run_dir, nodes)
        else:
            apart(partial(_close, kept.values()))
        if self.app.screen is not self:  # but the help, or a question about a host
            self.notify(f"{short(run)} has started: its dashboard comes when this is closed")
        self.disttui.router.open_run(run, instead=self)

    async def _save(self, draft: Draft, path: Path) -> str:
        """Save; return the error, empty if it was saved."""
        same = draft.path is not None and path == draft.path
        try:
            if await aside(path.is_dir):
                return f"{path}: it is a folder: name a file in it"
            if not same and await aside(path.exists):
                if not await self.disttui.ask(f"Replace {path.name}?", f"{path} is there already.", "replace"):
                    return f"{path.name} is there already"
                same = True
            # What is there is replaced after a yes; an edit that somebody makes of the same file meanwhile is not.
            before = draft.old if path == draft.path else await aside(lambda: text_of(path)) if same else None
            saved = await aside(lambda: save_at(path, draft.text, before, self.disttui.environ))
            if saved and saved.other:
                self.notify(f"somebody has changed the same keys: yours is saved as {saved.other}", severity="warning")
            elif saved and saved.commit:
                self.notify("saved in your clone; S beside the profiles on the home screen sends it")
        except InputError as error:
            return str(error)
        except OSError as error:
            return f"{path}: {error.strerror}"
        return ""

    def _launch(self, links: Mapping[str, Link], view: WizardState) -> str:
        assert view.weighed is not None
        return start_run(self._viewer(), view.draft, view.weighed, links)


def _close(links: Iterable[Link]) -> None:
    for link in links:
        link.close()
