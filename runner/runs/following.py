"""Follows a run: mirrors all its hosts, folds their records, and yields every update."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from disttui.runner.errors import DisttuiError
from disttui.runner.formatting import count
from disttui.runner.hosts.link import Link
from disttui.runner.ids import short
from disttui.runner.runs.contents import ExitFile
from disttui.runner.runs.follow import PIECES, HostMirror, LinkNews, LogRead, News, Notice, QueueNews, RecordRead
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.remote import Beginning, fill_all
from disttui.runner.runs.state import exit_code, fold, link, queue_up
from disttui.runner.runs.store import HostStore, host_folder

LINGER = 10.0
"""Seconds that unreachable hosts may delay the end of a run whose result is known."""
GIVE_UP_AFTER = 60.0
"""Seconds after which unreachable hosts are given up if all others have ended."""
TICK = 0.05
"""Seconds between checks of the user's requests while no update arrives."""


@dataclass(frozen=True)
class CaughtUp:
    """Everything that existed when following began is in the state."""


@dataclass(frozen=True)
class StopSent:
    """The run is being stopped, or killed if `now`. An unreachable host is asked once it is reachable."""

    now: bool
    reached: bool
    """Whether a host was asked immediately."""


@dataclass(frozen=True)
class Refresh:
    """Emitted a few times per second: all updates so far are in the state."""

    pending: int = 0
    """Bytes of logs that are still to come."""
    behind: float = 0.0
    """Seconds for which the oldest of them have been waiting, as far as this viewer knows."""


Update = LogRead | RecordRead | LinkNews | QueueNews | Notice | CaughtUp | StopSent | Refresh
"""An update of a followed run. A record is already folded into the state."""


class RunControl:
    """Requests to a followed run. May be set in any thread and in signal handlers."""

    stops = 0
    """1 stops the run, 2 kills it."""
    skips = 0
    """Number of requests to skip logs that are still to come."""
    leave = False
    """Stop following; the run continues."""


class Following:
    """A followed run. Iterate for its updates; the iteration ends when the run ends or `leave` is called.

    Args:
        mirror: The folder that its files are mirrored into, one folder per node rank.
        open_link: Opens a new link to the host of a node rank. Raises DisttuiError.
        links: One per host; None for those that are still to be connected.
        unreached: Node rank → why the host could not be reached at first; it is tried again.
        control: The user's requests; may be set from other threads.
        tail: Bytes at the end of every log to begin with; None: the whole log.
        replay: Bytes at the end of every mirrored log to begin with.
        only_look: Change nothing on the hosts; a run without a supervisor is not settled.
    """

    def __init__(
        self,
        run: KnownRun,
        mirror: Path,
        open_link: Callable[[int], Link],
        links: Sequence[Link | None] | None = None,
        *,
        unreached: Mapping[int, DisttuiError] | None = None,
        control: RunControl | None = None,
        tail: int | None = None,
        replay: int = 0,
        only_look: bool = False,
    ) -> None:
        self.run = run
        self.mirror = mirror
        self.unreached = unreached or {}
        self.state = run.begin()
        self.control = control or RunControl()
        self._open_link = open_link
        request: dict[str, object] = {**run.request(), **({} if tail is None else {"tail": tail})}
        self._request = request
        self._stops_said = 0
        self._stops_sent: dict[int, tuple[int, Link]] = {}
        """Node rank → the last request that was sent, and the link used: it may have been lost with the link."""
        self._ended: set[int] = set()
        self._result_at: float | None = None
        self._failed = False
        self._skips = 0
        self._read = 0
        """Bytes of logs that have been emitted."""
        self._caught_up: int | None = None
        """Bytes of logs to emit before `CaughtUp`."""
        self._read_at: dict[int, float] = {}
        """Node → when its logs were last read (monotonic clock, s)."""
        self._grown: deque[tuple[float, int]] = deque()
        """(monotonic seconds, total length of logs in bytes) at times whose logs have not been emitted yet."""
        self._behind = set(range(len(run.hosts)))
        self._news: queue.Queue[News] = queue.Queue(PIECES)
        given = list(links or [None] * len(run.hosts))
        self._all_known = bool(self.unreached) and not any(given)
        """Whether no host can be reached that could add to the mirror."""
        reopen = open_link
        if run.one_way:
            given = [given[0]] * len(run.hosts)
            self._one, self._one_lock = given[0], threading.Lock()
            reopen = self._shared_link
        self._followers = [
            HostMirror(
                node,
                {**request, "node_rank": node},
                HostStore(host_folder(mirror, node)),
                partial(reopen, node),
                self._news,
                replay=replay,
                only_look=only_look,
                complete=bool(self.state.lost),
            )
            for node in range(len(run.hosts))
        ]
        self._updates = self._follow(given)

    def __iter__(self) -> Iterator[Update]:
        return self._updates

    def stop(self, *, now: bool = False) -> None:
        """Ask every host to stop the run; the results arrive as updates. Any thread may call this.

        Args:
            now: Kill it immediately, without the grace that lets ranks save their work.
        """
        self.control.stops = max(self.control.stops, 2 if now else 1)

    def skip(self) -> None:
        """Skip the logs that are still to come, for a viewer that is behind. Any thread may call this."""
        self.control.skips += 1

    def leave(self) -> None:
        """End the iteration; the run continues. Any thread may call this."""
        self.control.leave = True

    def fetch(self, wanted: Sequence[Beginning]) -> None:
        """Fetch beginnings of logs into the mirror while following; blocks. Raises DisttuiError."""
        fill_all(self._open_link, self.run, wanted, lambda node: self._followers[node].store)

    def close(self) -> None:
        """Close the links to all hosts."""
        self._updates.close()

    def _follow(self, links: Sequence[Link | None]) -> Generator[Update, None, None]:
        for follower, open_link in zip(self._followers, links, strict=True):
            follower.start(open_link)
        try:
            while not self._over():
                yield from self._take_news()
                yield from self._take_logs()
                yield self._refresh()
                yield from self._send_stops()
                yield from self._skip()
                if self.control.leave or self._failed:
                    break
        finally:
            for follower in self._followers:
                follower.close()

    @property
    def exit_code(self) -> int:
        """The run's exit code; 0 if following was left, 1 if the run ended without a result."""
        result = self.state.result
        if result is not None:
            return exit_code(result)
        return 1 if self._failed or len(self._ended) == len(self.state.hosts) else 0

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

    def _take_logs(self) -> Iterator[Update]:
        """Emit the content of logs for a moment: other updates go first."""
        deadline = time.monotonic() + TICK
        while time.monotonic() < deadline and (unread := [each for each in self._followers if each.has_unread]):
            # The host that has waited longest comes first.
            follower = min(unread, key=lambda each: self._read_at.get(each.node, 0.0))
            self._read_at[follower.node] = time.monotonic()
            for piece in follower.read_logs():
                self._read += len(piece.data)
                yield piece
                if time.monotonic() > deadline:
                    break
        if self._caught_up is not None and (self._read >= self._caught_up or not self._has_unread()):
            self._caught_up = None
            yield CaughtUp()

    def _has_unread(self) -> bool:
        return any(follower.has_unread for follower in self._followers)

    def _pending(self) -> int:
        return sum(follower.pending for follower in self._followers)

    def _refresh(self) -> Refresh:
        """Report how far the logs are behind, based on when this viewer first knew of the oldest missing byte."""
        now, pending = time.monotonic(), self._pending()
        while self._grown and (not pending or self._grown[0][1] <= self._read):
            self._grown.popleft()
        if pending and (not self._grown or now - self._grown[-1][0] >= 1.0):
            self._grown.append((now, self._read + pending))
        return Refresh(pending, now - self._grown[0][0] if self._grown else 0.0)

    def _skip(self) -> Iterator[Update]:
        """Skip to the end of the logs on request, on a second Ctrl-C, and on any Ctrl-C if there is nothing to stop."""
        asked_to_stop = self.state.result is None or self._stops_said > 0
        wanted = self.control.skips + max(0, self.control.stops - asked_to_stop)
        if wanted <= self._skips:
            return
        self._skips = wanted
        self._grown.clear()
        for follower in self._followers:
            if skipped := follower.skip():
                words = f"skipped {count(skipped)}B of its logs; print them: disttui logs {short(self.state.run)}"
                yield Notice(follower.node, words)

    def _take(self, item: News) -> Iterator[Update]:
        if item is None:
            return
        if isinstance(item, Notice):
            yield item
        elif isinstance(item, QueueNews):
            self.state = queue_up(self.state, item.queued)
            yield item
        elif isinstance(item, RecordRead):
            try:
                self.state = fold(self.state, item.node, item.content)
            except ValueError:
                yield Notice.skipped(item.node, "events.jsonl")
            else:
                yield item
        else:
            yield from self._take_link(item)

    def _take_link(self, item: LinkNews) -> Iterator[Update]:
        if item.kind in ("caught up", "ended", "gone", "not seen", "failed") and item.node in self._behind:
            # Do not wait for an unreachable host.
            self._behind.discard(item.node)
            if not self._behind:
                self._caught_up = self._read + self._pending()
        # If this viewer cannot write one host's files, it cannot write any: report it once.
        if item.kind == "caught up" or (item.kind == "failed" and self._failed):
            return
        if item.kind == "failed":
            self._failed = True
            for host in self.state.hosts:
                self.state = link(self.state, host.node, "not seen", item.note.partition("\n")[0])
        else:
            self.state = link(self.state, item.node, item.kind, item.note)
        if item.kind in ("ended", "gone"):
            self._ended.add(item.node)
        yield item

    def _over(self) -> bool:
        if self._has_unread():
            return False
        if self.run.problem or len(self._ended) == len(self.state.hosts):
            return True
        # Wait for the end of reachable hosts, and a limited time for the others.
        waiting = [host for host in self.state.hosts if host.node not in self._ended]
        known = self._all_known or self.state.exits
        if not known or any(host.link != "not seen" for host in waiting):
            self._result_at = None
            return False
        self._result_at = self._result_at or time.monotonic()
        patience = 0.0 if self._all_known else GIVE_UP_AFTER if self.state.result is None else LINGER
        if time.monotonic() - self._result_at < patience:
            return False
        ends = self.run.ends()  # another command may have asked these hosts
        for host in waiting:
            end = ends.get(host.node)
            self.state = fold(self.state, host.node, ExitFile(end)) if end else link(self.state, host.node, "gone")
        return True

    def _send_stops(self) -> Iterator[Update]:
        """Send a stop for the first request, a kill for the second; repeat it on every new link to a host."""
        wanted = min(self.control.stops, 2)
        if not wanted or self.state.result is not None:
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

    def _shared_link(self, node: int) -> Link:
        """The link to a Slurm login node, which all parts of a run share; reopened if it is closed."""
        with self._one_lock:
            if self._one is None or self._one.closed:
                self._one = self._open_link(0)
            return self._one
