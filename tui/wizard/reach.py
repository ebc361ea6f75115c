"""Connects to hosts in daemon threads: one that never answers delays neither others nor the end of the app."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from textual.message import Message
from textual.message_pump import MessagePump

from runner.api.probing import Asked, facts_over
from runner.errors import DisttuiError
from runner.hosts.link import Link
from runner.profile import Host
from tui.wizard.draft import HostCheck

Result = TypeVar("Result")


class HostChanged(Message):
    """The check of a host has made progress."""

    def __init__(self, state: HostCheck) -> None:
        super().__init__()
        self.state = state


class Reach:
    """Connects and probes, and posts `HostChanged`. Call its methods from the app's thread.

    Args:
        reach: Opens a link to a host; called in threads. Raises DisttuiError.
    """

    def __init__(self, target: MessagePump, reach: Callable[[Host], Link]) -> None:
        self._target = target
        self._reach = reach
        self._current: dict[str, object] = {}
        """Host → its current attempt; results of earlier ones are ignored."""
        self._links: dict[str, Link] = {}

    def start(self, name: str, host: Host, asked: Asked | None) -> None:
        """Connect to a host and probe it; if there is a link already, only probe it again."""
        token = self._current[name] = object()
        link = self._links.get(name)
        apart(lambda: self._one(name, host, asked, token, link))

    def drop(self, name: str) -> None:
        """Stop the check of a host and ignore its further results."""
        self._current.pop(name, None)
        if link := self._links.pop(name, None):
            apart(link.close)

    def keep_links(self) -> dict[str, Link]:
        """Return all open links; the caller closes them."""
        links, self._links = self._links, {}
        self._current.clear()
        return links

    def close(self) -> None:
        """Stop the checks of all hosts."""
        for name in {*self._current, *self._links}:
            self.drop(name)

    def _one(self, name: str, host: Host, asked: Asked | None, token: object, link: Link | None) -> None:
        try:
            if link is None:
                self._tell(token, HostCheck(name, "connecting"))
                link = self._reach(host)
            self._tell(token, HostCheck(name, "probing", link=link))
            facts = facts_over(link, name, asked)
        except DisttuiError as error:
            self._fail(name, token, link, error)
        else:
            if self._current.get(name) is token:
                self._links[name] = link
                self._tell(token, HostCheck(name, "ready", facts, link))
            else:
                link.close()

    def _fail(self, name: str, token: object, link: Link | None, error: DisttuiError) -> None:
        if self._current.get(name) is token:
            self._links.pop(name, None)
        if link:
            link.close()
        self._tell(token, HostCheck(name, "failed", error=error))

    def _tell(self, token: object, state: HostCheck) -> None:
        if self._current.get(state.name) is token:
            self._target.post_message(HostChanged(state))


def apart(work: Callable[[], object]) -> None:
    """Run `work` in a daemon thread, which does not delay the end of the process."""
    threading.Thread(target=work, name="apart", daemon=True).start()


async def aside(work: Callable[[], Result]) -> Result:
    """Run `work` in a thread of its own and await it. Dead hosts would fill asyncio's pool."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            with suppress(Exception):
                future.set_exception(error)
        else:
            with suppress(Exception):
                future.set_result(result)

    apart(run)
    return await asyncio.wrap_future(future)
