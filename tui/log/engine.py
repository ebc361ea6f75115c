"""The thread behind a log view: reads and searches new lines, and reports at most a few times per second.

Also requests the beginnings of logs that a mirror lacks, and keeps the position of a view when they arrive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from disttui.tui.log.merge import LINE, SHIFT, LogSource
from disttui.tui.log.rows import LogFilter, Rows
from disttui.tui.log.search import TRIALS, SearchFailed
from disttui.tui.log.sources import AttemptLog, LogSources
from disttui.tui.log.view import TAIL, LogViewState

SLICE = 0.02
"""Maximum seconds for one kind of work before the next."""
PATIENCE = 0.08
"""Seconds that a new filter may take before its first results are shown."""
TAILS = 8
"""Maximum number of unfinished lines shown."""


@dataclass(frozen=True)
class Work:
    """The work that a view requests."""

    log: AttemptLog
    rows: Rows
    find: Rows | None = None


@dataclass(frozen=True)
class SearchProgress:
    """The state of the engine's work at one moment."""

    work: Work
    total: int
    """Number of lines over all ranks."""
    count: int
    """Number of rows that pass the filter."""
    hits: int
    complete: bool
    """Whether the filter has seen all lines."""
    searched: bool
    """Whether the search has seen all lines."""
    tails: tuple[tuple[LogSource, bytes], ...] = ()
    attempts: tuple[int, ...] = ()


class Engine:
    """Works on `work` until it is stopped.

    Args:
        work: The first work; `set` changes it.
        tell: Called with reports, in the engine's thread.
    """

    def __init__(self, work: Work, tell: Callable[[SearchProgress], None]) -> None:
        self.pace = 10.0
        """Maximum number of reports per second."""
        self._work = work
        self._tell = tell
        self._wake = threading.Event()
        self._stopped = False
        self._reported: SearchProgress | None = None
        self._reported_at = 0.0
        self._set_at = time.monotonic()
        self._quiet = 0

    def set(self, work: Work) -> None:
        """Replace the work; unfinished work is dropped."""
        self._work = work
        self._set_at = time.monotonic()
        self._wake.set()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopped = True
        self._wake.set()

    def run(self) -> None:
        """Work until `stop`; call it in a thread."""
        while not self._stopped:
            work = self._work
            try:
                busy = self._turn(work)
                self._report(work)
            except OSError:
                # The mirror was deleted, or its disk is gone; keep the lines shown, because it may come back.
                busy = False
            self._quiet = 0 if busy else self._quiet + 1
            if busy:
                time.sleep(0)  # lets the event loop run
            else:
                self._wake.wait(0.1 if self._quiet < 20 else 0.4)
                self._wake.clear()
        TRIALS.close()

    def _turn(self, work: Work) -> bool:
        # What the user waits for comes first: the search's first hit, then the rows, then new lines.
        changed = work.find is not None and self._steps(work.find)
        changed = self._steps(work.rows) or changed
        return work.log.poll(time.monotonic() + SLICE) or changed

    def _steps(self, rows: Rows) -> bool:
        deadline = time.monotonic() + SLICE
        had_none = not len(rows)
        while rows.step():
            if time.monotonic() > deadline or (had_none and len(rows)) or self._stopped:
                return True
        return False

    def _report(self, work: Work) -> None:
        now = time.monotonic()
        reported = self._reported
        progress = SearchProgress(
            work,
            total=len(work.log.order),
            count=len(work.rows),
            hits=len(work.find) if work.find else 0,
            complete=work.log.loaded and work.rows.complete,
            searched=work.find is None or work.find.complete,
            tails=tuple(self._tails(work)),
            attempts=tuple(work.log.attempts),
        )
        if progress == reported or work is not self._work:
            return
        fresh = reported is None or reported.work is not work
        answered = reported is not None and reported.work.find is work.find and not reported.hits and progress.hits
        if fresh:
            due = progress.complete or bool(progress.hits) or now - self._set_at > PATIENCE
        else:
            due = bool(answered) or now - self._reported_at >= 1 / self.pace
        if due:
            self._reported, self._reported_at = progress, now
            self._tell(progress)

    def _tails(self, work: Work) -> list[tuple[LogSource, bytes]]:
        choice = work.rows.choice
        if not work.rows.complete:
            return []
        tails = [
            (source, raw) for source, raw in work.log.tails() if choice.ranks is None or source.rank in choice.ranks
        ]
        with suppress(SearchFailed):
            return [tail for tail in tails if all(pattern.has_raw(tail[1]) for pattern in choice.patterns)][:TAILS]
        return []


class Reading:
    """Keeps the engine's work in step with a view.

    Args:
        tell: Called with reports, in the engine's thread.
    """

    def __init__(self, sources: LogSources, tell: Callable[[SearchProgress], None]) -> None:
        self.sources = sources
        log = sources.open()
        self.work = Work(log, Rows(log, LogFilter()))
        self.engine = Engine(self.work, tell)

    @property
    def log(self) -> AttemptLog:
        return self.work.log

    @property
    def nothing_yet(self) -> SearchProgress:
        """The report before anything is read."""
        return SearchProgress(self.work, 0, 0, 0, complete=False, searched=True)

    def set(self, view: LogViewState, *, start: int | None = None, log: AttemptLog | None = None) -> None:
        """Read what a view needs.

        Args:
            start: The place where a new search begins; None continues the current search.
            log: The log of another attempt to switch to.
        """
        was = self.work
        log = log or was.log
        same = log is was.log and view.choice == was.rows.choice
        rows = was.rows if same else Rows(log, view.choice)
        find = was.find
        if not same or start is not None:
            begin = start if start is not None else find.start if find and log is was.log else 0
            find = _finder(view, log, begin)
        if not same or find is not was.find:
            # Not for equal work: the engine would take its last report for the answer, and send no new one.
            self._take(Work(log, rows, find))

    def replace(self, view: LogViewState, new: Work) -> None:
        """Continue with work that another thread has done, and search it for the view's pattern."""
        self._take(Work(new.log, new.rows, _finder(view, new.log, 0)))

    def _take(self, work: Work) -> None:
        self.work = work
        self.engine.set(work)

    def lacking(self, ranks: frozenset[int] | None) -> list[LogSource]:
        """The logs of these ranks, or of all if None, whose beginnings are only on their hosts."""
        return [one for one in self.log.sources if one.index.base and (ranks is None or one.rank in ranks)]


def _finder(view: LogViewState, log: AttemptLog, begin: int) -> Rows | None:
    """The search for the view's pattern from a place on; None without a pattern."""
    if view.find is None:
        return None
    patterns = (*view.choice.patterns, view.find)
    return Rows(log, LogFilter(view.choice.ranks, patterns), min(begin, len(log.order)))


LEAST = 4 << 20
"""Minimum bytes per request, for all logs together; if the mirror has more, a request doubles that."""
NEAR = 50_000
"""Lines around the expected place that are searched first."""


@dataclass(frozen=True)
class Older:
    """Bytes of one log that its host has, and the mirror lacks."""

    node: int
    name: str
    """Its name on the host, such as `attempt-1/rank-0.log`."""
    start: int
    """Offset of the first byte in the mirror."""
    upto: int
    """Offset of the first byte to fetch."""


def wanted(lacking: Sequence[LogSource]) -> tuple[Older, ...]:
    """The next parts to request of these logs, whose beginnings are only on their hosts."""
    held = sum(source.index.size - source.index.base for source in lacking)
    each = max(LEAST, held) // len(lacking)
    return tuple(_older(source, each) for source in lacking)


def _older(source: LogSource, length: int) -> Older:
    path, start = source.index.path, source.index.base
    return Older(source.node, f"{path.parent.name}/{path.name}", start, max(0, start - length))


def read_anew(log: AttemptLog, choice: LogFilter, cancelled: Callable[[], bool]) -> SearchProgress | None:
    """Read all of a log as it is now, and filter it; return None if cancelled."""
    rows = Rows(log, choice)
    while not log.settled or rows.step():
        if cancelled():
            return None
        if not log.settled:
            log.poll(time.monotonic() + SLICE)
    return SearchProgress(Work(log, rows), len(log.order), len(rows), 0, complete=True, searched=True,
                    attempts=tuple(log.attempts))  # fmt: skip


def moved(view: LogViewState, old: AttemptLog, new: AttemptLog) -> LogViewState:
    """The view of the same lines in `new`, which contains more lines than `old`."""

    def place(at: int) -> int:
        return at if at >= TAIL else _place(at, old, new)

    seen = place(view.seen - 1) + 1 if 0 < view.seen <= len(old.order) else view.seen
    mark = None if view.mark is None else place(view.mark)
    return replace(view, top=place(view.top), cursor=place(view.cursor), mark=mark, seen=seen)


def _place(at: int, old: AttemptLog, new: AttemptLog) -> int:
    guess = max(0, at + len(new.order) - len(old.order))
    if at >= len(old.order):
        return guess
    entry = old.order.items[at]
    index = old.sources[entry >> SHIFT].index
    source = next((one for one in new.sources if one.index.path == index.path), None)
    if source is None:
        return guess
    wanted = source.number << SHIFT | source.index.line_at(index.starts[entry & LINE])
    for first, last in ((max(0, guess - NEAR), guess + NEAR), (0, len(new.order))):
        try:
            return new.order.items.index(wanted, first, last)
        except ValueError:
            continue
    return guess
