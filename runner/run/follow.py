"""Follow one host of a run: keep its mirror whole, whatever the link does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import Queue
from typing import Any

from runner.errors import DisttuiError
from runner.run.link import SILENCE, Link
from runner.run.store import HostStore

EAGER = 300.0
"""Seconds of trying to reconnect every 2 s; every 30 s after that."""
CHECK = 5.0
"""Seconds between questions whether the run's supervisor still lives."""
PIECES = 256
"""Pieces of files that may wait for the viewer: beyond that its hosts wait, and the files hold what is to come."""


@dataclass(frozen=True)
class LinkNews:
    """The viewer's link to a host has changed: seen, not seen, ended, failed."""

    node: int
    kind: str
    note: str = ""


@dataclass(frozen=True)
class RecordRead:
    """A complete record of a host's JSON or JSON-lines file."""

    node: int
    file: str
    record: Mapping[str, Any]


@dataclass(frozen=True)
class LogRead:
    """Bytes of a log, in order and without gaps; `restart`: the file began anew, `data` is empty then."""

    node: int
    file: str
    data: bytes
    restart: bool = False


News = LinkNews | RecordRead | LogRead


class Follower:
    """Mirrors one host's run directory and tells what is new.

    Args:
        request: Arguments of the `mirror` op (run, node_rank, run_dir).
        reopen: Makes a new link when one has broken; raises DisttuiError.
        news: Where news go. Bounded: a slow reader slows down the reading of files, never the run.
    """

    def __init__(
        self,
        node: int,
        request: Mapping[str, Any],
        store: HostStore,
        reopen: Callable[[], Link],
        news: Queue[News],
    ) -> None:
        self.node = node
        self.link: Link | None = None
        self._request = request
        self._store = store
        self._reopen = reopen
        self._news = news
        self._names: dict[int, str] = {}
        self._partial: dict[str, bytes] = {}
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follow {node}", daemon=True)

    def start(self, link: Link) -> None:
        """Begin with a link that is open already."""
        self.link = link
        self._thread.start()

    def close(self) -> None:
        """End following and close the link."""
        self._closed.set()
        if self.link:
            self.link.close()
        if self._thread.ident:
            self._thread.join(0.5)
        self._store.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            link = self.link
            if link is None:
                link = self._reconnect()
                if link is None:
                    return
            future = link.stream("mirror", self._take, have=self._store.have(), **self._request)
            self._news.put(LinkNews(self.node, "seen"))
            shown = True
            checked = time.monotonic()
            while not (future.done() or self._closed.wait(0.25)):
                if (link.silence < SILENCE) != shown:
                    shown = not shown
                    self._news.put(LinkNews(self.node, "seen" if shown else "not seen"))
                if time.monotonic() - checked > CHECK:
                    # A supervisor and its warden that were both killed leave no word: the node program finds it out.
                    checked = time.monotonic()
                    link.submit("status", **self._request)
            if self._ended.is_set() or self._closed.is_set():
                return
            link.close()
            self.link = None
            self._news.put(LinkNews(self.node, "not seen", _why(future)))

    def _reconnect(self) -> Link | None:
        waited = 0.0
        pause = 0.25
        while not self._closed.wait(pause):
            waited += pause
            pause = min(2.0, pause * 2) if waited < EAGER else 30.0
            try:
                self.link = self._reopen()
            except DisttuiError as error:
                self._news.put(LinkNews(self.node, "not seen", error.what))
            else:
                return self.link
        return None

    def _take(self, item: Mapping[str, Any] | tuple[int, int, int, bytes]) -> None:
        """Called by the link's reader thread: write the mirror, then tell."""
        try:
            if isinstance(item, tuple):
                file, _, offset, data = item
                name = self._store.write(file, offset, data)
                if name is not None:
                    self._tell(name, data)
            elif "file" in item:
                restarted = self._store.announce(item)
                if restarted:
                    self._partial.pop(restarted, None)
                    self._news.put(LogRead(self.node, restarted, b"", restart=True))
            elif "ended" in item:
                self._ended.set()
                self._news.put(LinkNews(self.node, "ended"))
        except DisttuiError as error:
            # The viewer's disk is full, say: the run goes on, this viewer cannot.
            self._news.put(LinkNews(self.node, "failed", str(error)))
            self._closed.set()

    def _tell(self, name: str, data: bytes) -> None:
        if name.endswith(".log"):
            self._news.put(LogRead(self.node, name, data))
            return
        held = self._partial.get(name, b"") + data
        if name.endswith(".json"):
            # Written by rename, so it comes whole; it may still come in several pieces.
            self._partial[name] = held
            lines = [held]
        else:
            body, _, self._partial[name] = held.rpartition(b"\n")
            lines = body.split(b"\n")
        for record in _records(lines):
            self._news.put(RecordRead(self.node, name, record))


def _records(lines: list[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            # A line torn by a full disk: the next one is whole again.
            continue
        if isinstance(record, dict):
            yield record


def _why(future: Any) -> str:
    error = future.exception() if future.done() and not future.cancelled() else None
    return error.what if isinstance(error, DisttuiError) else ""
