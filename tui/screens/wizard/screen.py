"""The screen that walks through the steps: it owns the draft, reaches the hosts, saves and launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.binding import BindingType
from textual.widget import Widget

from runner.discovery import find_all, read_file
from runner.errors import DisttuiError, InputError
from runner.profile.save import save
from runner.run.link import Link
from runner.transport import Connector
from tui.keys import APP, CHANGE, OPEN, bind
from tui.screens.base import Command, DisttuiScreen
from tui.screens.wizard import ground
from tui.screens.wizard.check import CheckStep
from tui.screens.wizard.draft import Draft, HostState, View, new_draft, open_draft, request_for, runnable, weigh
from tui.screens.wizard.hardware import HardwareStep, HardwareTable
from tui.screens.wizard.hosts import PLAYED, HostsStep, HostTable
from tui.screens.wizard.job import JobStep
from tui.screens.wizard.launching import start_run
from tui.screens.wizard.processes import ProcessesStep
from tui.screens.wizard.reach import HostChanged, Reach, apart, aside
from tui.screens.wizard.save import SaveScreen
from tui.screens.wizard.step import Step, count
from tui.widgets.rail import Rail
from tui.widgets.table import Table

STEPS: tuple[type[Step], ...] = (HostsStep, HardwareStep, ProcessesStep, JobStep, CheckStep)
LAST = len(STEPS) - 1


class WizardScreen(DisttuiScreen):
    """From hosts to a running training.

    Args:
        profile: The file to begin with.
        launch: Begin at the last step, and launch when the checks are through.
    """

    HELP = """Five steps, walked both ways: enter goes on, escape goes back, and nothing is lost on the way. What you
    see at the end is the file that a person would write; `disttui run FILE` does the same."""
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("wizard.on", "enter", "on", "go on", "go on to the next step", group=OPEN),
        bind("wizard.launch", "enter,L", "launch", "launch", "start the run on all hosts", group=CHANGE),
        bind("wizard.save", "s,ctrl+s", "save", "save", "save the profile", group=CHANGE),
        bind("screen.back", "escape,q", "back", "back", "to the step before", group=APP),
    ]

    DEFAULT_CSS = """
    WizardScreen {
        Rail { margin: 0 0 1 0; }
        .main { height: 1fr; }
        #whole-run { height: 7; border-top: solid $rule; }
        #step-processesstep .main { min-height: 12; }
        #step-processesstep Notes { max-height: 8; }
        #check-panes Pane { display: none; height: 1fr; padding: 0 1; border: none; scrollbar-size: 1 1; }
        #check-panes Pane.-current { display: block; }
    }
    WizardScreen.-short {
        Rail { margin: 0; }
        Notes, #step-processesstep Notes { max-height: 4; }
        #whole-run { display: none; }
        #step-processesstep .main { min-height: 4; }
    }
    WizardScreen.-wide {
        Step { layout: horizontal; }
        .main { width: 3fr; height: 100%; }
        Notes, #step-processesstep Notes { width: 2fr; height: 100%; max-height: 100%; padding: 0 2; }
        #step-checkstep { layout: vertical; }
        #tabs { display: none; }
        #check-panes { layout: grid; grid-size: 2; grid-columns: 2fr 3fr; grid-rows: 1fr 1fr; grid-gutter: 0 1; }
        #check-panes Pane { display: block; height: 100%; border-top: solid $rule; border-title-color: $muted; }
        #check-panes Pane:focus { border-top: solid $accent; border-title-color: $accent; border-title-style: bold; }
        #pane-commands { row-span: 2; }
    }
    WizardScreen.-wide.-tall {
        #per-host { height: auto; max-height: 70%; }
        #whole-run { margin: 1 0 0 0; }
    }
    """

    def __init__(self, profile: Path | None = None, launch: bool = False) -> None:
        super().__init__()
        self._file = profile
        self._hurry = launch
        self._at = 0
        self._view = View(new_draft())
        self._saved: Mapping[str, object] = self._view.draft.data
        self._reach = Reach(self, self._connector)
        self._launching = False

    def body(self) -> Iterable[Widget]:
        """The rail and the steps."""
        yield Rail([step.TITLE for step in STEPS])
        yield from (step() for step in STEPS)

    def on_mount(self) -> None:
        """Open the file, look for hosts."""
        self._discover()
        if self._file is None:
            self._go(0)
        else:
            self._open(self._file)

    def on_unmount(self) -> None:
        """Let go of the hosts."""
        self._reach.close()

    def commands(self) -> Iterator[Command]:
        """Every step, for the palette."""
        for number, step in enumerate(STEPS):
            yield Command(f"Step {number + 1}: {step.TITLE}", "of the wizard", partial(self._try, number))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Launch and save at the end only."""
        if action == "on":
            return self._at < LAST
        if action in ("launch", "save"):
            here = self._at == LAST and not self._launching
            return here and super().check_action(action, parameters) is True
        return super().check_action(action, parameters)

    # Walking

    @property
    def _step(self) -> Step:
        return self.query(Step)[self._at]

    def action_on(self) -> None:
        """To the next step."""
        self._try(self._at + 1)

    async def action_back(self) -> None:
        """To the step before; from the first, leave."""
        if self._at == 0:
            self._leave()
        else:
            self._go(self._at - 1)

    def _try(self, wanted: int) -> None:
        """Go to a step, as far as those before it let."""
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
        unsaved = self._view.draft.data != self._saved and self._view.draft.hosts
        if unsaved and not await self.disttui.ask("Leave the wizard?", "What you have chosen is not saved.", "leave"):
            return
        # Not awaited: the screen waits for its workers before it is gone.
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

    def _open(self, path: Path) -> None:
        try:
            draft = open_draft(path)
        except InputError as error:
            self.notify(str(error), severity="error")
            self._go(0)
            return
        self._saved = draft.data
        self._take(draft)
        self._go(LAST if self._hurry else 0)

    @on(Step.Changed)
    def _changed(self, event: Step.Changed) -> None:
        self._take(event.draft)
        self._show()

    def _take(self, draft: Draft) -> None:
        """Take another draft, and reach the hosts that are new in it."""
        before, self._view = self._view, replace(self._view, draft=draft)
        moved = before.draft.sandbox != draft.sandbox
        if draft.sandbox and ground.close not in self.disttui.at_end:
            self.disttui.at_end.append(ground.close)
        for name in before.states:
            if name not in draft.hosts or moved:
                self._reach.drop(name)
        states = {} if moved else {name: state for name, state in before.states.items() if name in draft.hosts}
        fresh = [name for name in draft.hosts if name not in states]
        self._view = replace(self._view, states=states)
        for name in fresh:
            self._start(name)

    def _show(self) -> None:
        self._view = replace(self._view, weighed=weigh(self._view, self.disttui.environ))
        view = self._view
        facts = [count(len(view.draft.hosts), "host")] if view.draft.hosts else []
        if view.weighed:
            facts.append(count(view.weighed.plan.world_size, "process"))
            facts.append(view.weighed.plan.backend)
        facts += ["sandbox"] if view.draft.sandbox else []
        name = str(view.draft.data.get("name") or "new profile") if view.draft.hosts else "new profile"
        self.header.show(name, facts, right=f"step {self._at + 1} of {len(STEPS)}")
        self._step.show(view)

    # Hosts

    def _connector(self) -> Connector:
        """In a thread: the way to the hosts."""
        return ground.ground() if self._view.draft.sandbox else self.disttui.connector()

    @work(group="discover")
    async def _discover(self) -> None:
        app = self.disttui
        found = await aside(lambda: find_all(app.ssh_config, app.environ, Path.cwd()))
        self._view = replace(self._view, found=(*self._view.found, *found))
        self._show()
        if self._at == 0 and not self._view.draft.hosts:
            self._step.enter()

    @on(HostsStep.FileNamed)
    async def _read(self, event: HostsStep.FileNamed) -> None:
        try:
            found = await aside(lambda: read_file(event.path))
        except InputError as error:
            self.notify(str(error), severity="error")
            return
        others = [one for one in self._view.found if one.source != found.source]
        self._view = replace(self._view, found=(found, *others))
        self._show()
        self.query_one(HostTable).focus()

    def _start(self, name: str) -> None:
        draft = self._view.draft
        try:
            profile = runnable(draft)
            host = profile.hosts[draft.hosts.index(name)] if profile else draft.host(name)
        except InputError as error:
            self._set(HostState(name, "failed", error=error))
            return
        old = self._view.states.get(name)
        self._set(HostState(name, "probing" if old and old.facts else "connecting", old.facts if old else None))
        self._reach.start(name, host, request_for(draft, name))

    def _ask_again(self) -> None:
        """Probe all hosts once more: folder, script and interpreter may be others than at first."""
        for name in self._view.draft.hosts:
            self._start(name)

    def _set(self, state: HostState) -> None:
        self._view = replace(self._view, states={**self._view.states, state.name: state})

    def on_host_changed(self, message: HostChanged) -> None:
        """A host has come a step further."""
        state = message.state
        old = self._view.states.get(state.name)
        if state.name not in self._view.draft.hosts:
            return
        if state.pending and old and old.facts:
            state = replace(state, facts=old.facts)
        self._set(state)
        self._show()
        self._go_on_in_a_hurry()

    @on(HostTable.Asked)
    @on(HardwareTable.Asked)
    def _asked(self, event: HostTable.Asked | HardwareTable.Asked) -> None:
        names = self._view.draft.hosts if event.key == PLAYED else [event.key]
        for name in names:
            if name not in self._view.draft.hosts:
                continue
            if event.what == "retry":
                self._reach.drop(name)
                self._start(name)
            elif event.what == "cancel":
                self._reach.drop(name)
                self._set(
                    HostState(name, "left out", error=InputError("nobody waits for it any more", "r tries again"))
                )
            elif len(self._view.draft.hosts) > 1:
                left = [other for other in self._view.draft.hosts if other != name]
                self._take(self._view.draft.with_hosts(left, sandbox=self._view.draft.sandbox))
            else:
                self.notify("It is the only host: go back and choose another", severity="warning")
        self._show()

    # Save and launch

    @work(group="save", exclusive=True)
    async def action_save(self) -> None:
        """Ask where, and save."""
        path = await self.app.push_screen_wait(SaveScreen(self._view.draft))
        if path is None:
            return
        draft = self._view.draft
        same = draft.path is not None and path == draft.path
        try:
            if not same and await aside(path.exists):
                if not await self.disttui.ask(f"Replace {path.name}?", f"{path} is there already.", "replace"):
                    return
                same = True
            await aside(lambda: save(draft.text, path, replace=same))
        except InputError as error:
            self.notify(str(error), severity="error")
            return
        self._saved = draft.data
        self._view = replace(self._view, draft=replace(draft, path=path, old=draft.text, named=True))
        self.notify(f"saved: {path}")
        self._show()

    def _go_on_in_a_hurry(self) -> None:
        ready = all(state.state == "ready" for state in self._view.of_hosts())
        if self._hurry and ready and self._at == LAST and not self.disttui.read_only:
            self._hurry = False
            self.action_launch()

    @work(group="launch", exclusive=True)
    async def action_launch(self) -> None:
        """Start the run, and show it."""
        view, check = self._view, self.query_one(CheckStep)
        weighed = view.weighed
        if self._launching or weighed is None or any(state.pending for state in view.of_hosts()):
            self.notify("Not all hosts have answered yet", severity="warning")
            return
        if weighed.forbidden:
            self.notify("Errors keep it from starting: see the checks", severity="warning")
            return
        links = {state.name: state.link for state in view.of_hosts() if state.link}
        self._launching, check.busy = True, "starting"
        self._show()
        try:
            run = await aside(partial(self._launch, links, view))
        except DisttuiError as error:
            self.notify(str(error), severity="error", timeout=20)
            return
        finally:
            self._launching, check.busy = False, ""
            self._show()
            self.refresh_bindings()
        kept = self._reach.keep_links()
        if view.draft.sandbox:
            nodes = dict(enumerate(kept[name] for name in view.draft.hosts))
            ground.end_with_app(run, weighed.profile.launch.run_dir, nodes)
        else:
            apart(partial(_close, kept.values()))
        app = self.disttui
        app.pop_screen()
        app.open_run(run)

    def _launch(self, links: Mapping[str, Link], view: View) -> str:
        assert view.weighed is not None
        app = self.disttui
        config = str(ground.ground().config) if view.draft.sandbox else app.ssh_config
        return start_run(view.draft, view.weighed, links, app.environ, config)


def _close(links: Iterable[Link]) -> None:
    for link in links:
        link.close()
