"""The thread behind a log view: reads what has come and searches it, and tells at most some times a second."""

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
"""Seconds of one kind of work before the others have their turn."""
PATIENCE = 0.08
"""Seconds that a new choice of lines may take before what is found of it so far is shown."""
TAILS = 8
"""Unfinished lines that are shown at once."""


@dataclass(frozen=True)
class Work:
    """What the view wants to know."""

    log: AttemptLog
    rows: Rows
    find: Rows | None = None


@dataclass(frozen=True)
class SearchProgress:
    """What is known at one moment."""

    work: Work
    total: int
    """Lines of all ranks."""
    count: int
    """Rows of the choice."""
    hits: int
    complete: bool
    """Whether everything that has come has been looked at for the choice."""
    searched: bool
    """The same for the search."""
    tails: tuple[tuple[LogSource, bytes], ...] = ()
    attempts: tuple[int, ...] = ()


class Engine:
    """Works on `work` until it is stopped.

    Args:
        work: What to begin with; `set` changes it.
        tell: Called in the engine's thread.
    """

    def __init__(self, work: Work, tell: Callable[[SearchProgress], None]) -> None:
        self.pace = 10.0
        """Most times a second that it tells."""
        self._work = work
        self._tell = tell
        self._wake = threading.Event()
        self._stopped = False
        self._told: SearchProgress | None = None
        self._told_at = 0.0
        self._set_at = time.monotonic()
        self._quiet = 0

    def set(self, work: Work) -> None:
        """Work on something else from now on; what was begun is dropped."""
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
        """Work until `stop`; to be called in a thread."""
        while not self._stopped:
            work = self._work
            try:
                busy = self._turn(work)
                self._report(work)
            except OSError:
                # The mirror was deleted, or its disk is gone: what is shown stays, and it may come back.
                busy = False
            self._quiet = 0 if busy else self._quiet + 1
            if busy:
                time.sleep(0)  # lets the event loop have the interpreter
            else:
                self._wake.wait(0.1 if self._quiet < 20 else 0.4)
                self._wake.clear()
        TRIALS.close()

    def _turn(self, work: Work) -> bool:
        # What somebody waits for comes first: the search's first hit, then the rows, then what is new.
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
        told = self._told
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
        if progress == told or work is not self._work:
            return
        fresh = told is None or told.work is not work
        answered = told is not None and told.work.find is work.find and not told.hits and progress.hits
        if fresh:
            due = progress.complete or bool(progress.hits) or now - self._set_at > PATIENCE
        else:
            due = bool(answered) or now - self._told_at >= 1 / self.pace
        if due:
            self._told, self._told_at = progress, now
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
