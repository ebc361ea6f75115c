"""The thread behind a log view: reads and searches new lines, and reports a few times per second at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tui.log.merge import LogSource
from tui.log.regexes import TRIALS, SearchFailed
from tui.log.rows import Rows
from tui.log.sources import AttemptLog

SLICE = 0.02
"""The most seconds for one kind of work before the next kind."""
PATIENCE = 0.08
"""Seconds that a new filter may take before its first results are shown."""
TAILS = 8
"""The most unfinished lines shown."""


@dataclass(frozen=True)
class Work:
    """The work that a view requests."""

    log: AttemptLog
    rows: Rows
    find: Rows | None = None


@dataclass(frozen=True)
class SearchProgress:
    """What is known at one moment."""

    work: Work
    total: int
    """Number of lines of all ranks."""
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
        tell: Takes reports; called in the engine's thread.
    """

    def __init__(self, work: Work, tell: Callable[[SearchProgress], None]) -> None:
        self.pace = 10.0
        """The most reports per second."""
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

    def wake(self) -> None:
        """Look for new lines and files at once."""
        self._work.log.refresh()
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
                # The mirror was deleted, or its disk is gone: keep the lines shown, it may come back.
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
