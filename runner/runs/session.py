"""A headless viewer: follows all hosts of a run, folds what they tell, and hands it to a printer until the run ends."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from runner.hosts.link import Link
from runner.runs.follow import PIECES, Follower, LinkNews, LogRead, News, RecordRead, Skipped, Told
from runner.runs.state import RunState, exit_code, fold, link
from runner.runs.store import HostStore, host_folder

LINGER = 10.0
"""Seconds that hosts which are not seen may hold up the end of a run whose result is known."""
REPLAY = 256 * 1024
"""Bytes at the end of every mirrored log that an attached viewer begins with."""
GONE = 60.0
"""Seconds after which hosts that are not seen are given up, when all the others have come to their end."""
TICK = 0.05
"""Seconds between looks at the signals while nothing comes."""


class Printer(Protocol):
    """Shows a run as it goes on."""

    def log(self, host: str, file: str, data: bytes, *, restart: bool) -> None:
        """Take bytes of a host's log file."""

    def record(self, state: RunState, node: int, file: str, record: Mapping[str, Any]) -> None:
        """Take a record that has just been folded into `state`."""

    def link(self, state: RunState, node: int, kind: str, note: str) -> None:
        """Take news of this viewer's link to a host."""

    def refresh(self, state: RunState) -> None:
        """Called some times a second: everything that has come is in `state`."""

    def say(self, text: str) -> None:
        """Say something in disttui's own words."""


class Signals:
    """What the user asked for by signals: SIGINT and SIGTERM stop, SIGHUP detaches.

    Until `hold_back` there is nothing to stop or to leave: the first signal raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.stops = 0
        self.detach = False
        self._held_back = False

    def hold_back(self) -> None:
        """From now on signals are only noted."""
        self._held_back = True

    @contextmanager
    def caught(self) -> Any:
        """Catch SIGINT, SIGTERM and SIGHUP while the block runs."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            signal.signal(signal.SIGINT, self._stop)
            signal.signal(signal.SIGTERM, self._stop)
            signal.signal(signal.SIGHUP, self._hang_up)
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        self._interrupt()

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        self.detach = True
        self._interrupt()

    def _interrupt(self) -> None:
        if not self._held_back:
            self._held_back = True
            raise KeyboardInterrupt


class Session:
    """Follows one run until its end.

    Args:
        reopen: Makes a new link to the host of a node rank. Raises DisttuiError.
        folder: The run's mirror; one folder per node rank is made in it.
        request: Arguments that name the run to the node program (`run`, `run_dir`).
        attached: Look at a run that others have begun: what the mirror holds is told first, and Ctrl-C detaches.
        only_look: Change nothing on the hosts.
        until: Leave as soon as this is true.
        caught_up: Called once, when everything that was there at the beginning has been taken.
    """

    def __init__(
        self,
        state: RunState,
        printer: Printer,
        signals: Signals,
        *,
        folder: Path,
        request: Mapping[str, Any],
        reopen: Callable[[int], Link],
        attached: bool = False,
        only_look: bool = False,
        caught_up: Callable[[RunState], None] | None = None,
        until: Callable[[RunState], bool] | None = None,
    ) -> None:
        self.state = state
        self._printer = printer
        self._signals = signals
        self._request = request
        self._stops_sent = 0
        self._ended: set[int] = set()
        self._result_at: float | None = None
        self._failed = ""
        self._attached = attached
        self._caught_up = caught_up
        self._until = until
        self._behind = set(range(len(state.hosts)))
        self._news: queue.Queue[News] = queue.Queue(PIECES)
        self._followers = [
            Follower(
                node,
                {**request, "node_rank": node},
                HostStore(host_folder(folder, node)),
                lambda node=node: reopen(node),  # type: ignore[misc]
                self._news,
                replay=REPLAY if attached else 0,
                only_look=only_look,
            )
            for node in range(len(state.hosts))
        ]

    def follow(self, links: Sequence[Link | None]) -> int:
        """Follow until the run has ended or the viewer is told to leave.

        Args:
            links: One per host; None for those that cannot be reached yet.

        Returns:
            The run's exit code; 0 when detached, 1 when it has ended without a word.
        """
        for follower, open_link in zip(self._followers, links, strict=True):
            follower.start(open_link)
        try:
            while not self._over():
                self._take_news()
                self._printer.refresh(self.state)
                self._obey()
                if self._signals.detach or self._failed or (self._until and self._until(self.state)):
                    break
        finally:
            for follower in self._followers:
                follower.close()
        result = self.state.result
        if result is not None:
            return exit_code(result)
        return 1 if self._failed or len(self._ended) == len(self.state.hosts) else 0

    def store(self, node: int) -> HostStore:
        """The mirror of a host; its logs may be filled from their front meanwhile."""
        return self._followers[node].store

    def _take_news(self) -> None:
        try:
            item = self._news.get(timeout=TICK)
        except queue.Empty:
            return
        deadline = time.monotonic() + TICK
        while True:
            self._take(item)
            if time.monotonic() > deadline:
                return
            try:
                item = self._news.get_nowait()
            except queue.Empty:
                return

    def _take(self, item: News) -> None:
        if isinstance(item, LogRead):
            self._printer.log(self.state.hosts[item.node].name, item.file, item.data, restart=item.restart)
        elif isinstance(item, Skipped):
            name = self.state.hosts[item.node].name
            self._printer.say(f"{name}: {item.file} at byte {item.offset}: this is no record, skipped")
        elif isinstance(item, Told):
            self._printer.say(f"{self.state.hosts[item.node].name}: {item.text}")
        elif isinstance(item, RecordRead):
            try:
                self.state = fold(self.state, item.node, item.file, item.record)
            except (KeyError, TypeError, ValueError, AttributeError):
                self._printer.say(
                    f"{self.state.hosts[item.node].name}: a record of {item.file} is malformed and is skipped"
                )
            else:
                self._printer.record(self.state, item.node, item.file, item.record)
        else:
            self._take_link(item)

    def _take_link(self, item: LinkNews) -> None:
        if item.kind in ("caught up", "ended", "gone", "not seen", "failed"):
            self._reached_now(item.node)
        # What keeps this viewer from writing one host's files keeps it from all: it is told once.
        if item.kind == "caught up" or (item.kind == "failed" and self._failed):
            return
        self.state = link(self.state, item.node, item.kind, item.note)
        self._printer.link(self.state, item.node, item.kind, item.note)
        if item.kind in ("ended", "gone"):
            self._ended.add(item.node)
        elif item.kind == "failed":
            self._failed = item.note

    def _reached_now(self, node: int) -> None:
        """Note that a host has told all it had; one that is not seen holds up nobody."""
        if node in self._behind:
            self._behind.discard(node)
            if not self._behind and self._caught_up:
                self._caught_up(self.state)

    def _over(self) -> bool:
        if len(self._ended) == len(self.state.hosts):
            return True
        # Hosts that are still seen come to their own end, the others are waited for a little.
        waiting = [host for host in self.state.hosts if host.node not in self._ended]
        if not self.state.exits or any(host.link != "not seen" for host in waiting):
            self._result_at = None
            return False
        self._result_at = self._result_at or time.monotonic()
        if time.monotonic() - self._result_at < (GONE if self.state.result is None else LINGER):
            return False
        for host in waiting:
            self.state = link(self.state, host.node, "gone")
        return True

    def _obey(self) -> None:
        """Send a stop for the first Ctrl-C, a kill for the second; an attached viewer just leaves."""
        if self._attached and self._signals.stops:
            self._signals.detach = True
            return
        wanted = min(self._signals.stops, 2)
        if self._signals.stops > 2:
            self._signals.detach = True
        if wanted <= self._stops_sent:
            return
        self._stops_sent = wanted
        now = wanted > 1
        self._printer.say(
            "killing every process of the run" if now else "stopping the run; Ctrl-C again kills it at once"
        )
        for follower in self._followers:
            if follower.link:
                follower.link.submit("stop", **self._request, node_rank=follower.node, now=now, reason="user")
