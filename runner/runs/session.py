"""Follows a run: mirrors all its hosts, folds their records, and yields every update."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runner.errors import DisttuiError
from runner.hosts.link import Link
from runner.runs.follow import PIECES, HostMirror, LinkNews, LogRead, News, Notice, QueueNews, RecordRead, Skipped
from runner.runs.state import RunState, exit_code, fold, link, queue_up
from runner.runs.store import HostStore, host_folder

LINGER = 10.0
"""Seconds that unreachable hosts may delay the end of a run whose result is known."""
GONE = 60.0
"""Seconds after which unreachable hosts are given up when all others have ended."""
TICK = 0.05
"""Seconds between checks of the user's wishes while no update arrives."""


@dataclass(frozen=True)
class CaughtUp:
    """Everything that existed when following began is in the state."""


@dataclass(frozen=True)
class StopSent:
    """The run is to be stopped; `now`: to be killed. A host that is not reached is asked once it is."""

    now: bool
    reached: bool
    """Whether a host was asked at once."""


@dataclass(frozen=True)
class Refresh:
    """Emitted a few times per second: all updates so far are in the state."""


Update = LogRead | RecordRead | LinkNews | QueueNews | Notice | CaughtUp | StopSent | Refresh
"""An update of a followed run. A record is already folded into the state."""


class Wishes:
    """What the user wants of a followed run. May be set in any thread and in signal handlers."""

    stops = 0
    """1: stop it, 2: kill it."""
    leave = False
    """Stop following; the run goes on."""


class Session:
    """Follows one run until its end.

    Args:
        folder: The run's mirror, with one folder per node rank.
        request: Arguments that name the run to the node program (`run`, `run_dir`).
        reopen: Makes a new link to the host of a node rank. Raises DisttuiError.
        replay: Bytes at the end of every mirrored log that are emitted before new ones.
        only_look: Change nothing on the hosts.
    """

    def __init__(
        self,
        state: RunState,
        *,
        folder: Path,
        request: Mapping[str, object],
        reopen: Callable[[int], Link],
        wishes: Wishes | None = None,
        replay: int = 0,
        only_look: bool = False,
    ) -> None:
        self.state = state
        self.wishes = wishes or Wishes()
        self._request = request
        self._stops_said = 0
        self._stops_sent: dict[int, tuple[int, Link]] = {}
        """Node rank → the last wish that was sent, and by which link: it may have been lost with that."""
        self._ended: set[int] = set()
        self._result_at: float | None = None
        self._failed = False
        self._behind = set(range(len(state.hosts)))
        self._news: queue.Queue[News] = queue.Queue(PIECES)
        self._followers = [
            HostMirror(
                node,
                {**request, "node_rank": node},
                HostStore(host_folder(folder, node)),
                lambda node=node: reopen(node),  # type: ignore[misc]
                self._news,
                replay=replay,
                only_look=only_look,
            )
            for node in range(len(state.hosts))
        ]

    def follow(self, links: Sequence[Link | None]) -> Generator[Update, None, None]:
        """Follow until the run has ended or the user leaves.

        Args:
            links: One per host; None for those that cannot be reached yet.
        """
        for follower, open_link in zip(self._followers, links, strict=True):
            follower.start(open_link)
        try:
            while not self._over():
                yield from self._take_news()
                yield Refresh()
                yield from self._obey()
                if self.wishes.leave or self._failed:
                    break
        finally:
            for follower in self._followers:
                follower.close()

    @property
    def exit_code(self) -> int:
        """The run's exit code; 0 when it was left, 1 when it has ended without a result."""
        result = self.state.result
        if result is not None:
            return exit_code(result)
        return 1 if self._failed or len(self._ended) == len(self.state.hosts) else 0

    def store(self, node: int) -> HostStore:
        """The mirror of a host; the beginnings of its logs may be filled in meanwhile."""
        return self._followers[node].store

    def _take_news(self) -> Iterator[Update]:
        try:
            item = self._news.get(timeout=TICK)
        except queue.Empty:
            return
        deadline = time.monotonic() + TICK
        while True:
            yield from self._take(item)
            if time.monotonic() > deadline:
                return
            try:
                item = self._news.get_nowait()
            except queue.Empty:
                return

    def _take(self, item: News) -> Iterator[Update]:
        if isinstance(item, LogRead | Notice):
            yield item
        elif isinstance(item, Skipped):
            yield _notice(item)
        elif isinstance(item, QueueNews):
            self.state = queue_up(self.state, item.queued)
            yield item
        elif isinstance(item, RecordRead):
            try:
                self.state = fold(self.state, item.node, item.content)
            except ValueError:
                yield _notice(Skipped(item.node, "events.jsonl", None))
            else:
                yield item
        else:
            yield from self._take_link(item)

    def _take_link(self, item: LinkNews) -> Iterator[Update]:
        if item.kind in ("caught up", "ended", "gone", "not seen", "failed") and item.node in self._behind:
            # Do not wait for a host that is not seen.
            self._behind.discard(item.node)
            if not self._behind:
                yield CaughtUp()
        # What prevents this viewer from writing one host's files prevents all: report it once.
        if item.kind == "caught up" or (item.kind == "failed" and self._failed):
            return
        self.state = link(self.state, item.node, item.kind, item.note)
        if item.kind in ("ended", "gone"):
            self._ended.add(item.node)
        elif item.kind == "failed":
            self._failed = True
        yield item

    def _over(self) -> bool:
        if len(self._ended) == len(self.state.hosts):
            return True
        # Wait for the end of hosts that are seen, and a limited time for the others.
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

    def _obey(self) -> Iterator[Update]:
        """Send a stop for the first wish, a kill for the second; again by every new link to a host."""
        wanted = min(self.wishes.stops, 2)
        if not wanted:
            return
        now, reached = wanted > 1, False
        for follower in self._followers:
            opened = follower.link
            if opened is None or opened.closed:
                continue
            reached = True
            if self._stops_sent.get(follower.node) != (wanted, opened):
                self._stops_sent[follower.node] = wanted, opened
                asked = opened.submit("stop", **self._request, node_rank=follower.node, now=now, reason="user")
                asked.add_done_callback(partial(self._note_refusal, follower.node, opened))
        if wanted > self._stops_said:
            self._stops_said = wanted
            yield StopSent(now, reached)

    def _note_refusal(self, node: int, opened: Link, asked: Future[Any]) -> None:
        error = None if asked.cancelled() else asked.exception()
        if isinstance(error, DisttuiError) and not opened.closed:
            self._news.put(Notice(node, f"the stop was refused: {error.sentence}"))


def _notice(skipped: Skipped) -> Notice:
    if skipped.offset is None:
        return Notice(skipped.node, f"a record of {skipped.file} is malformed and is skipped")
    return Notice(skipped.node, f"{skipped.file} at byte {skipped.offset}: this is no record, skipped")
