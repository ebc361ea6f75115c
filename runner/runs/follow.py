"""Follows one host of a run: keeps its mirror complete across broken links."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Full, Queue
from typing import Any

from disttui.runner.errors import DisttuiError
from disttui.runner.hosts.link import SILENCE, Item, Link
from disttui.runner.paths import PathError
from disttui.runner.protocol.slurm import Queued
from disttui.runner.runs.contents import Content, read_content
from disttui.runner.runs.store import MOST_OLD, HostStore
from disttui.runner.untrusted.decode import MalformedRecordError, decode
from disttui.runner.untrusted.records import Unfinished, whole

EAGER = 300.0
"""Seconds of reconnecting every 2 s; afterwards every 30 s."""
CHECK = 5.0
"""Seconds between checks whether the run's supervisor is alive."""
PIECES = 256
"""Records that may wait for the viewer; beyond that its hosts pause sending, and the rest stays in their files."""
SKIPPED_TO = 64 * 1024
"""Bytes at the end of every log from which a viewer that skips the rest continues."""


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
    """Bytes of a log, in order and without gaps; `restart`: the file was rewritten, and `data` is empty."""

    node: int
    file: str
    data: bytes
    restart: bool = False


@dataclass(frozen=True)
class Notice:
    """A note for the user about a host, without its name."""

    node: int
    text: str

    @classmethod
    def skipped(cls, node: int, file: str, offset: int | None = None) -> Notice:
        """A malformed record: a line at an offset, or JSON of the wrong form."""
        at = "" if offset is None else f" at byte {offset}"
        return cls(node, f"{file}{at}: malformed record skipped")


@dataclass(frozen=True)
class QueueNews:
    """The queue state of the run's Slurm job."""

    queued: Queued


News = QueueNews | LinkNews | RecordRead | Notice | None
"""None: logs have grown in the mirror, and `HostMirror.read_logs` has more."""


@dataclass
class _Unread:
    """The mirrored part of a log that has not been read."""

    start: int = 0
    end: int = 0
    restart: bool = False


class HostMirror:
    """Mirrors one host's run directory and puts updates into `news`.

    Logs stay in the mirror until `read_logs`: a viewer that shows them slowly delays neither records nor the link.

    Args:
        request: Arguments of the `mirror` op (run, node_rank, run_dir).
        reopen: Returns a new link after one has broken; raises DisttuiError.
        news: Receives the updates. Bounded: a slow reader slows down the reading of files, never the run.
        replay: Bytes at the end of every mirrored log to emit before new ones; events, metrics and telemetry are
            emitted completely.
        only_look: Change nothing on the host: a run without a supervisor is not settled.
        complete: Whether the host has nothing to add to the mirror.
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
        complete: bool = False,
    ) -> None:
        self.node = node
        self.link: Link | None = None
        self._request = request
        self.store = store
        self._reopen = reopen
        self._news = news
        self._partial: dict[str, Unfinished] = {}
        self._replay = replay
        self._only_look = only_look
        self._complete = complete
        self._unread: dict[str, _Unread] = {}
        self._reading = threading.Lock()
        self._grown = False
        """Whether a None that reports this is in `news`."""
        self._behind = 0
        """Bytes of logs that the host has not sent yet, as far as this viewer knows."""
        self._to_skip = threading.Event()
        self._exit_read = False
        self._noted = ""
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follow {node}", daemon=True)

    def start(self, link: Link | None) -> None:
        """Start with an open link, or None to try to open one."""
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

    @property
    def pending(self) -> int:
        """Bytes of logs that are still to be read, here and on the host."""
        with self._reading:
            return self._behind + sum(unread.end - unread.start for unread in self._unread.values())

    @property
    def has_unread(self) -> bool:
        """Whether `read_logs` has more."""
        return bool(self._unread)

    def read_logs(self) -> Iterator[LogRead]:
        """Yield the next piece of every log that has one, the longest waiting first."""
        self._grown = False
        for name in list(self._unread):
            with self._reading:
                unread = self._unread.pop(name)
                restart, unread.restart = unread.restart, False
                # A caller may take only one piece: what follows a restart stays unread.
                data = b"" if restart else self._read_unread(name, unread)
                if unread.start < unread.end:
                    self._unread[name] = unread
            if restart:
                yield LogRead(self.node, name, b"", restart=True)
            if data:
                yield LogRead(self.node, name, data)

    def skip(self) -> int:
        """Continue at the ends of the logs; return the number of skipped bytes."""
        skipped = self.pending
        with self._reading:
            for unread in self._unread.values():
                unread.start, unread.restart = unread.end, True
            if self._behind > SKIPPED_TO:
                self._to_skip.set()
            self._behind = 0
        return skipped

    def _read_unread(self, name: str, unread: _Unread) -> bytes:
        try:
            for offset, data in self.store.read(name, unread.start):
                piece = data[: unread.end - offset]
                unread.start = offset + len(piece)
                return piece
        except (OSError, PathError):
            pass
        unread.start = unread.end  # the copy no longer exists
        return b""

    def _run(self) -> None:
        self._tell_held()
        # exit.json is the last file of a run.
        if self._complete or "exit.json" in self.store.files():
            self._ended.set()
            self._news.put(LinkNews(self.node, "ended"))
            return
        while not self._closed.is_set():
            link = self.link
            if link is None:
                link = self._reconnect()
                if link is None:
                    return
            self._tell_note(link)
            request = {**self._request, "have": self.store.have(), "settle": not self._only_look}
            if self._to_skip.is_set():
                self._to_skip.clear()
                request["tail"] = SKIPPED_TO
            future = link.stream("mirror", self._take, **request)
            self._news.put(LinkNews(self.node, "seen"))
            shown = True
            checked = time.monotonic()
            while not (future.done() or self._closed.wait(0.25)):
                self.store.settle()
                if self._to_skip.is_set():
                    link.cancel(future)
                if (link.silence < SILENCE) != shown:
                    shown = not shown
                    self._news.put(LinkNews(self.node, "seen" if shown else "not seen"))
                if time.monotonic() - checked > CHECK:
                    # A supervisor and its warden that were both killed write nothing: the node program detects that.
                    checked = time.monotonic()
                    status = link.submit("status", settle=not self._only_look, **self._request)
                    if self._only_look:
                        status.add_done_callback(self._note_death)
            self._behind = 0
            if self._ended.is_set() or self._closed.is_set():
                return
            if self._to_skip.is_set() and not future.exception():
                continue
            link.close()
            self.link = None
            self._news.put(LinkNews(self.node, "not seen", _why(future)))

    def _tell_note(self, link: Link) -> None:
        """Emit once what the user should know about how the host was reached."""
        if link.note and link.note != self._noted:
            self._noted = link.note
            self._news.put(Notice(self.node, link.note))

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
            self._news.put(LinkNews(self.node, "ended", "its supervisor died unexpectedly"))
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
                self.link.close()  # `close` was called in the meantime and found no link
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
                self._announce(item)
            else:
                self._take_event(item)
        except PathError:
            raise  # an error in this host's data: its link ends for this reason
        except DisttuiError as error:
            # An error of this machine, such as a full disk: the run continues, this viewer cannot.
            self._news.put(LinkNews(self.node, "failed", str(error)))
            self._closed.set()

    def _take_event(self, event: Mapping[str, object]) -> None:
        if "behind" in event:
            self._behind = whole(event["behind"]) or 0
        elif "exit" in event:
            self._tell_exit(event["exit"])
        elif "queue" in event:
            self._news.put(QueueNews(decode(Queued, event["queue"])))
        elif "caught_up" in event:
            self._news.put(LinkNews(self.node, "caught up"))
        elif "ended" in event:
            self._ended.set()
            self._news.put(LinkNews(self.node, "ended"))
        elif "gone" in event:
            self._ended.set()
            self._news.put(LinkNews(self.node, "gone", "its run folder was removed"))

    def _tell(self, name: str, offset: int, data: bytes) -> None:
        if name.endswith(".log"):
            self._note_unread(name, offset, offset + len(data))
            return
        held = self._partial.setdefault(name, Unfinished())
        for at, record in held.whole_file(offset, data) if name.endswith(".json") else held.lines(offset, data):
            if name == "exit.json":
                self._tell_exit(record)
            elif record is not None:
                self._news.put(self._read(name, record))
            elif not name.endswith(".json"):
                self._news.put(Notice.skipped(self.node, name, at))

    def _announce(self, item: Mapping[str, object]) -> None:
        with self._reading:
            restarted = self.store.announce(item)
            if restarted and restarted.endswith(".log"):
                self._unread[restarted] = _Unread(restart=True)
        if restarted:
            self._partial.pop(restarted, None)
            if item.get("generation") == MOST_OLD:
                text = f"{restarted} was restarted {MOST_OLD} times: older copies are no longer kept"
                self._news.put(Notice(self.node, text))

    def _note_unread(self, name: str, start: int, end: int) -> None:
        with self._reading:
            unread = self._unread.setdefault(name, _Unread())
            if self._to_skip.is_set():  # sent before the host knew: only its last piece is shown
                unread.start, unread.restart = start, True
            elif unread.start >= unread.end:
                unread.start = start
            unread.end = end
            self._behind = max(0, self._behind - (end - start))
        if not self._grown:
            self._grown = True
            with suppress(Full):  # the session reads logs after the records that wait there
                self._news.put_nowait(None)

    def _tell_exit(self, record: object) -> None:
        """Emit the end once: it comes before exit.json itself if logs are behind."""
        if isinstance(record, Mapping) and not self._exit_read:
            self._exit_read = True
            self._news.put(self._read("exit.json", record))

    def _read(self, name: str, record: Mapping[str, object]) -> RecordRead | Notice:
        try:
            return RecordRead(self.node, read_content(name, record))
        except MalformedRecordError:
            return Notice.skipped(self.node, name)


def _why(future: Any) -> str:
    error = future.exception() if future.done() and not future.cancelled() else None
    return error.sentence if isinstance(error, DisttuiError) else ""
