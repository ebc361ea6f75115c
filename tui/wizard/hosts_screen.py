"""The part of the wizard that owns the draft and connects to its hosts.

It connects in daemon threads, so that an unresponsive host delays neither others nor the end of the app.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from textual import on, work
from textual.message import Message
from textual.message_pump import MessagePump

from disttui.runner.api.probing import Asked, facts_over
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.hosts.discovery import find_all, read_file
from disttui.runner.hosts.link import Link
from disttui.runner.paths import here
from disttui.runner.profile.sections import Host
from disttui.tui.screen import DisttuiScreen
from disttui.tui.wizard import sandbox
from disttui.tui.wizard.draft import Draft, HostCheck, WizardState, asked_of, new_draft, runnable
from disttui.tui.wizard.hardware import AskingTable
from disttui.tui.wizard.hosts import SANDBOX_ROW, HostsStep, HostTable, NameInput
from disttui.tui.wizard.step import Step


class HostChanged(Message):
    """The check of a host has made progress."""

    def __init__(self, state: HostCheck) -> None:
        super().__init__()
        self.state = state


class _Attempt:
    """An attempt to reach a host; while it connects, what to ask may still change."""

    def __init__(self, host: Host, asked: Asked | None, link: Link | None) -> None:
        self.host, self.asked, self.link = host, asked, link
        self.connecting = link is None


class HostProber:
    """Connects to hosts, probes them, and posts `HostChanged`. Call its methods from the app's thread.

    Args:
        open_link: Opens a link to a host; called in threads. Raises DisttuiError.
    """

    def __init__(self, target: MessagePump, open_link: Callable[[Host], Link]) -> None:
        self._target = target
        self._open_link = open_link
        self._current: dict[str, _Attempt] = {}
        """Host → its current attempt; results of earlier ones are ignored."""
        self._links: dict[str, Link] = {}

    def start(self, name: str, host: Host, asked: Asked | None) -> None:
        """Connect to a host and probe it, or only probe it again if there is a link already, or soon."""
        now = self._current.get(name)
        if now and now.connecting and now.host.label() == host.label():
            now.host, now.asked = host, asked
            return
        link = self._links.get(name)
        token = self._current[name] = _Attempt(host, asked, None if link and link.closed else link)
        run_detached(lambda: self._one(name, token))

    def drop(self, name: str) -> None:
        """Stop the check of a host: ignore further results, and close its link."""
        self._current.pop(name, None)
        if link := self._links.pop(name, None):
            run_detached(link.close)

    def keep_links(self) -> dict[str, Link]:
        """Return all open links, which the caller must close, and ignore further results."""
        links, self._links = self._links, {}
        self._current.clear()
        return links

    def close(self) -> None:
        """Stop the checks of all hosts."""
        for name in {*self._current, *self._links}:
            self.drop(name)

    def _one(self, name: str, token: _Attempt) -> None:
        link = token.link
        try:
            if link is None:
                self._post(token, HostCheck(name, "connecting"))
                try:
                    link = self._open_link(token.host)
                finally:
                    token.connecting = False
            self._post(token, HostCheck(name, "probing", link=link))
            facts = facts_over(link, token.host, token.asked)
        except DisttuiError as error:
            self._fail(name, token, link, error)
        else:
            if self._current.get(name) is token:
                self._links[name] = link
                self._post(token, HostCheck(name, "ready", facts, link))
            else:
                link.close()

    def _fail(self, name: str, token: _Attempt, link: Link | None, error: DisttuiError) -> None:
        if self._current.get(name) is token:
            self._links.pop(name, None)
        if link:
            link.close()
        self._post(token, HostCheck(name, "failed", error=error))

    def _post(self, token: _Attempt, state: HostCheck) -> None:
        if self._current.get(state.name) is token:
            self._target.post_message(HostChanged(state))


def run_detached(work: Callable[[], object]) -> None:
    """Run `work` in a daemon thread, which does not delay the end of the process."""
    threading.Thread(target=work, name="detached", daemon=True).start()


class HostsScreen(DisttuiScreen):
    """Keeps one `WizardState` up to date with the user's changes to the draft and the hosts' answers."""

    def __init__(self) -> None:
        super().__init__()
        self._view = WizardState(new_draft())
        # Called in threads.
        self._prober = HostProber(self, lambda host: self._viewer().open_link(host, self._view.draft.ssh_config))

    @abstractmethod
    def _show(self) -> None:
        """Show the state; called after each change."""

    def on_unmount(self) -> None:
        self._prober.close()

    @on(Step.Changed)
    def _changed(self, event: Step.Changed) -> None:
        self._take(event.draft)
        self._show()

    def _take(self, draft: Draft) -> None:
        """Take a new draft, disconnect from removed hosts, and connect to new ones."""
        before, self._view = self._view, replace(self._view, draft=draft)
        moved = before.draft.sandbox != draft.sandbox
        if draft.sandbox and sandbox.close not in self.disttui.at_end:
            self.disttui.at_end.append(sandbox.close)
            self.disttui.ends_with_app.append(sandbox.running)
        for name in before.states:
            if name not in draft.hosts or moved:
                self._prober.drop(name)
        states = {} if moved else {name: state for name, state in before.states.items() if name in draft.hosts}
        fresh = [name for name in draft.hosts if name not in states]
        self._view = replace(self._view, states=states)
        for name in fresh:
            self._start(name)

    def _viewer(self) -> Viewer:
        """The viewer that connects to the hosts; called in a thread."""
        app = self.disttui
        return sandbox.viewer(app.environ) if self._view.draft.sandbox else app.viewer()

    @work(group="discover")
    async def _discover(self) -> None:
        app = self.disttui
        found = await asyncio.to_thread(find_all, app.ssh_config, app.environ, here())
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
            found = await asyncio.to_thread(read_file, event.path, ask=True)
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
        self._prober.start(name, host, asked_of(draft, name))

    def _ask_again(self) -> None:
        """Probe all hosts again, because folder, script and interpreter may have changed."""
        for name in self._view.draft.hosts:
            self._start(name)

    def _set(self, state: HostCheck) -> None:
        self._view = replace(self._view, states={**self._view.states, state.name: state})

    def on_host_changed(self, message: HostChanged) -> None:
        state = message.state
        old = self._view.states.get(state.name)
        if state.name not in self._view.draft.hosts:
            return
        if state.pending and old and old.facts:
            state = replace(state, facts=old.facts)
        self._set(state)
        self._show()

    def _drop_dead(self) -> None:
        """Remove every host that is unusable, if others remain."""
        draft = self._view.draft
        left = [state.name for state in self._view.of_hosts() if not self._view.unusable(state)]
        if left and len(left) < len(draft.hosts):
            self._take(draft.with_hosts(left, sandbox=draft.sandbox))
            self._show()
        else:
            words = "No host is unusable" if left else "No host can be used: r retries, or choose others"
            self.notify(words, severity="warning")

    @on(AskingTable.Asked)
    def _asked(self, event: AskingTable.Asked) -> None:
        if event.what == "drop dead":
            self._drop_dead()
            return
        names = [event.key]
        if event.key == SANDBOX_ROW:
            names = self._view.draft.hosts if self._view.draft.sandbox else []
        for name in names:
            if name not in self._view.draft.hosts:
                continue
            if event.what == "retry":
                self._prober.drop(name)
                self._start(name)
            elif event.what == "cancel":
                if name in self._view.states and self._view.states[name].pending:  # otherwise keep its result
                    self._prober.drop(name)
                    self._set(HostCheck(name, "left out", error=InputError("you stopped waiting")))
            elif len(self._view.draft.hosts) > 1:
                left = [other for other in self._view.draft.hosts if other != name]
                self._take(self._view.draft.with_hosts(left, sandbox=self._view.draft.sandbox))
            else:
                self.notify("This is the only host: go back and choose another", severity="warning")
        self._show()
