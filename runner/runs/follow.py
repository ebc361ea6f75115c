"""Follows one host of a run: keeps its mirror complete across broken links."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Queue
from typing import Any

from runner.errors import DisttuiError
from runner.hosts.link import SILENCE, Item, Link
from runner.paths import PathError
from runner.protocol.slurm import Queued
from runner.runs.contents import Content, read_content
from runner.runs.store import MOST_OLD, HostStore
from runner.untrusted.decode import MalformedRecordError, decode
from runner.untrusted.records import Unfinished

EAGER = 300.0
"""Seconds of reconnecting every 2 s; every 30 s after that."""
CHECK = 5.0
"""Seconds between checks whether the run's supervisor is alive."""
PIECES = 256
"""Updates that may wait for the viewer; beyond that its hosts pause sending, and the rest stays in their files."""


@dataclass(frozen=True)
class LinkNews:
    """The state of the viewer's link to a host: seen, caught up, not seen, ended, gone, failed."""

    node: int
    kind: str
    note: str = ""


@dataclass(frozen=True)
class RecordRead:
    """A complete record of a host's JSON or JSON-lines file."""

    node: int
    content: Content


@dataclass(frozen=True)
class LogRead:
    """Bytes of a log, in order and without gaps; `restart`: the file began anew, `data` is empty then."""

    node: int
    file: str
    data: bytes
    restart: bool = False


@dataclass(frozen=True)
class Skipped:
    """A malformed record in a host's file: a line at an offset, or (None) JSON of the wrong form."""

    node: int
    file: str
    offset: int | None


@dataclass(frozen=True)
class Notice:
    """A note about a host for the user, without its name."""

    node: int
    text: str


@dataclass(frozen=True)
class QueueNews:
    """Where the job of Slurm is that a run is."""

    queued: Queued


News = QueueNews | LinkNews | RecordRead | LogRead | Skipped | Notice


class HostMirror:
    """Mirrors one host's run directory and puts the updates into `news`.

    Args:
        request: Arguments of the `mirror` op (run, node_rank, run_dir).
        reopen: Makes a new link when one has broken; raises DisttuiError.
        news: Takes the updates. Bounded: a slow reader slows down the reading of files, never the run.
        replay: Bytes at the end of every mirrored log to emit before new ones; events, metrics and telemetry are
            emitted completely.
        only_look: Change nothing on the host: a run without a supervisor is not settled.
    """

    def __init__(
        self,
        node: int,
        request: Mapping[str, object],
        store: HostStore,
        reopen: Callable[[], Link],
        news: Queue[News],
        *,
        replay: int = 0,
        only_look: bool = False,
    ) -> None:
        self.node = node
        self.link: Link | None = None
        self._request = request
        self.store = store
        self._reopen = reopen
        self._news = news
        self._names: dict[int, str] = {}
        self._partial: dict[str, Unfinished] = {}
        self._replay = replay
        self._only_look = only_look
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follow {node}", daemon=True)

    def start(self, link: Link | None) -> None:
        """Begin with an open link; None: try to make one."""
        self.link = link
        self._thread.start()

    def close(self) -> None:
        """Stop following and close the link."""
        self._closed.set()
        if self.link:
            self.link.close()
        if self._thread.ident:
            self._thread.join(0.5)
        self.store.close()

    def _run(self) -> None:
        self._tell_held()
        if "exit.json" in self.store.files():
            # The last file of a run: the mirror is complete.
            self._ended.set()
            self._news.put(LinkNews(self.node, "ended"))
            return
        while not self._closed.is_set():
            link = self.link
            if link is None:
                link = self._reconnect()
                if link is None:
                    return
            request = {**self._request, "have": self.store.have(), "settle": not self._only_look}
            future = link.stream("mirror", self._take, **request)
            self._news.put(LinkNews(self.node, "seen"))
            shown = True
            checked = time.monotonic()
            while not (future.done() or self._closed.wait(0.25)):
                self.store.settle()
                if (link.silence < SILENCE) != shown:
                    shown = not shown
                    self._news.put(LinkNews(self.node, "seen" if shown else "not seen"))
                if time.monotonic() - checked > CHECK:
                    # A supervisor and its warden that were both killed write nothing: the node program detects that.
                    checked = time.monotonic()
                    status = link.submit("status", settle=not self._only_look, **self._request)
                    if self._only_look:
                        status.add_done_callback(self._note_death)
            if self._ended.is_set() or self._closed.is_set():
                return
            link.close()
            self.link = None
            self._news.put(LinkNews(self.node, "not seen", _why(future)))

    def _tell_held(self) -> None:
        """Emit what an earlier viewer has left in the mirror."""
        for name, (_, end) in sorted(self.store.files().items()):
            try:
                for offset, data in self.store.read(name, end - self._replay if name.endswith(".log") else 0):
                    if self._closed.is_set():
                        return
                    self._tell(name, offset, data)
            except OSError:
                continue

    def _note_death(self, status: Future[Any]) -> None:
        found = None if status.cancelled() or status.exception() else status.result()
        if found is not None and not found["alive"] and found["exit"] is None and not self._ended.is_set():
            self._ended.set()
            self._news.put(LinkNews(self.node, "ended", "its supervisor is gone without a word"))
            self._closed.set()

    def _reconnect(self) -> Link | None:
        waited = 0.0
        pause = 0.25
        while not self._closed.wait(pause):
            waited += pause
            pause = min(2.0, pause * 2) if waited < EAGER else 30.0
            try:
                self.link = self._reopen()
            except DisttuiError as error:
                self._news.put(LinkNews(self.node, "not seen", error.sentence))
            else:
                if not self._closed.is_set():
                    return self.link
                self.link.close()  # `close` was called meanwhile, and found no link to close
        return None

    def _take(self, item: Item) -> None:
        """Called by the link's reader thread: write to the mirror, then emit the update."""
        if self._closed.is_set():
            return
        try:
            if isinstance(item, tuple):
                file, _, offset, data = item
                name = self.store.write(file, offset, data)
                if name is not None:
                    self._tell(name, offset, bytes(data))
            elif "file" in item:
                restarted = self.store.announce(item)
                if restarted:
                    self._partial.pop(restarted, None)
                    self._news.put(LogRead(self.node, restarted, b"", restart=True))
                    if item.get("generation") == MOST_OLD:
                        text = f"{restarted} has begun anew {MOST_OLD} times: older copies of it are not kept any more"
                        self._news.put(Notice(self.node, text))
            elif "queue" in item:
                self._news.put(QueueNews(decode(Queued, item["queue"])))
            elif "caught_up" in item:
                self._news.put(LinkNews(self.node, "caught up"))
            elif "ended" in item:
                self._ended.set()
                self._news.put(LinkNews(self.node, "ended"))
            elif "gone" in item:
                self._ended.set()
                self._news.put(LinkNews(self.node, "gone", "its run folder is gone"))
        except PathError:
            raise  # a fault of this host's data: its link ends with this reason
        except DisttuiError as error:
            # A fault of this machine, such as a full disk: the run goes on, this viewer cannot.
            self._news.put(LinkNews(self.node, "failed", str(error)))
            self._closed.set()

    def _tell(self, name: str, offset: int, data: bytes) -> None:
        if name.endswith(".log"):
            self._news.put(LogRead(self.node, name, data))
            return
        held = self._partial.setdefault(name, Unfinished())
        for at, record in held.whole_file(offset, data) if name.endswith(".json") else held.lines(offset, data):
            if record is not None:
                self._news.put(self._read(name, record))
            elif not name.endswith(".json"):
                self._news.put(Skipped(self.node, name, at))

    def _read(self, name: str, record: Mapping[str, object]) -> RecordRead | Skipped:
        try:
            return RecordRead(self.node, read_content(name, record))
        except MalformedRecordError:
            return Skipped(self.node, name, None)


def _why(future: Any) -> str:
    error = future.exception() if future.done() and not future.cancelled() else None
    return error.sentence if isinstance(error, DisttuiError) else ""
