"""The part of the wizard that owns the draft and connects to its hosts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path

from textual import on, work

from runner.api.viewer import Viewer
from runner.errors import InputError
from runner.hosts.discovery import find_all, read_file
from runner.hosts.link import Link
from runner.profile import Host
from tui.screen import DisttuiScreen
from tui.wizard import sandbox
from tui.wizard.draft import Draft, HostCheck, WizardState, asked_of, new_draft, runnable
from tui.wizard.hardware import HardwareTable
from tui.wizard.hosts import PLAYED, HostsStep, HostTable, NameInput
from tui.wizard.reach import HostChanged, Reach, aside
from tui.wizard.step import Step


class HostsScreen(DisttuiScreen):
    """Keeps one `WizardState` up to date with the user's changes to the draft and the hosts' answers."""

    def __init__(self) -> None:
        super().__init__()
        self._view = WizardState(new_draft())
        self._reach = Reach(self, self._link_to)

    @abstractmethod
    def _show(self) -> None:
        """Show the state; called after each change."""

    def on_unmount(self) -> None:
        """Close the connections to the hosts."""
        self._reach.close()

    @on(Step.Changed)
    def _changed(self, event: Step.Changed) -> None:
        self._take(event.draft)
        self._show()

    def _take(self, draft: Draft) -> None:
        """Take a new draft, and connect to its new hosts."""
        before, self._view = self._view, replace(self._view, draft=draft)
        moved = before.draft.sandbox != draft.sandbox
        if draft.sandbox and sandbox.close not in self.disttui.at_end:
            self.disttui.at_end.append(sandbox.close)
        for name in before.states:
            if name not in draft.hosts or moved:
                self._reach.drop(name)
        states = {} if moved else {name: state for name, state in before.states.items() if name in draft.hosts}
        fresh = [name for name in draft.hosts if name not in states]
        self._view = replace(self._view, states=states)
        for name in fresh:
            self._start(name)

    def _link_to(self, host: Host) -> Link:
        """Connect to a host; called in a thread. Raises DisttuiError."""
        return self._viewer().open_link(host, self._view.draft.ssh_config)

    def _viewer(self) -> Viewer:
        """The viewer that connects to the hosts; called in a thread."""
        app = self.disttui
        return sandbox.ground(app.environ) if self._view.draft.sandbox else app.viewer()

    @work(group="discover")
    async def _discover(self) -> None:
        app = self.disttui
        found = await aside(lambda: find_all(app.ssh_config, app.environ, Path.cwd()))
        self._view = replace(self._view, found=(*self._view.found, *found))
        self._show()
        hosts = self.query_one(HostsStep)
        # A user who is typing a name keeps the focus.
        typing = isinstance(self.focused, NameInput) and self.focused.value
        if hosts.has_class("-current") and not typing and not self._view.draft.hosts:
            hosts.enter()

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
            self._set(HostCheck(name, "failed", error=error))
            return
        old = self._view.states.get(name)
        self._set(HostCheck(name, "probing" if old and old.facts else "connecting", old.facts if old else None))
        self._reach.start(name, host, asked_of(draft, name))

    def _ask_again(self) -> None:
        """Probe all hosts again: folder, script and interpreter may have changed."""
        for name in self._view.draft.hosts:
            self._start(name)

    def _set(self, state: HostCheck) -> None:
        self._view = replace(self._view, states={**self._view.states, state.name: state})

    def on_host_changed(self, message: HostChanged) -> None:
        """Take the new state of a host."""
        state = message.state
        old = self._view.states.get(state.name)
        if state.name not in self._view.draft.hosts:
            return
        if state.pending and old and old.facts:
            state = replace(state, facts=old.facts)
        self._set(state)
        self._show()

    def _drop_dead(self) -> None:
        """Leave out every host that has failed, if another one is left."""
        draft = self._view.draft
        left = [state.name for state in self._view.of_hosts() if state.error is None]
        if left and len(left) < len(draft.hosts):
            self._take(draft.with_hosts(left, sandbox=draft.sandbox))
            self._show()
        elif not left:
            self.notify("No host could be used: r tries again, or choose others", severity="warning")

    @on(HostTable.Asked)
    @on(HardwareTable.Asked)
    def _asked(self, event: HostTable.Asked | HardwareTable.Asked) -> None:
        if event.what == "drop dead":
            self._drop_dead()
            return
        names = self._view.draft.hosts if event.key == PLAYED else [event.key]
        for name in names:
            if name not in self._view.draft.hosts:
                continue
            if event.what == "retry":
                self._reach.drop(name)
                self._start(name)
            elif event.what == "cancel":
                if name in self._view.states and self._view.states[name].pending:  # else it has its own reason
                    self._reach.drop(name)
                    self._set(HostCheck(name, "left out", error=InputError("nobody waits for it any more")))
            elif len(self._view.draft.hosts) > 1:
                left = [other for other in self._view.draft.hosts if other != name]
                self._take(self._view.draft.with_hosts(left, sandbox=self._view.draft.sandbox))
            else:
                self.notify("It is the only host: go back and choose another", severity="warning")
        self._show()
