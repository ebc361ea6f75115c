"""What a log view reads (attempt, ranks, filter, search), and the thread that reads it."""

from __future__ import annotations

from collections.abc import Callable

from tui.log.engine import Engine, SearchProgress, Work
from tui.log.merge import LogSource
from tui.log.rows import LogFilter, Rows
from tui.log.sources import AttemptLog, LogSources
from tui.log.view import LogViewState


class Reading:
    """Keeps the engine's work equal to what a view wants.

    Args:
        attempt: Which attempt; None: the latest.
        tell: Takes reports; called in the engine's thread.
    """

    def __init__(self, sources: LogSources, attempt: int | None, tell: Callable[[SearchProgress], None]) -> None:
        self.sources = sources
        log = sources.open(attempt)
        self.work = Work(log, Rows(log, LogFilter()))
        self.engine = Engine(self.work, tell)

    @property
    def log(self) -> AttemptLog:
        """The attempt that is read."""
        return self.work.log

    @property
    def nothing_yet(self) -> SearchProgress:
        """The report before anything is read."""
        return SearchProgress(self.work, 0, 0, 0, complete=False, searched=True)

    def set(self, view: LogViewState, *, start: int | None = None, log: AttemptLog | None = None) -> None:
        """Read what a view needs.

        Args:
            start: The place where a new search begins; None: continue the present search.
            log: Another attempt.
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
            # Otherwise the engine's last report, on the same work, would count as the answer to another request.
            self._take(Work(log, rows, find))

    def replace(self, view: LogViewState, new: Work) -> None:
        """Continue with work that another thread has done, and with the view's search in it."""
        self._take(Work(new.log, new.rows, _finder(view, new.log, 0)))

    def _take(self, work: Work) -> None:
        self.work = work
        self.engine.set(work)

    def lacking(self, ranks: frozenset[int] | None) -> list[LogSource]:
        """The logs of these ranks (None: of all) whose beginnings are only on their hosts."""
        return [one for one in self.log.sources if one.index.base and (ranks is None or one.rank in ranks)]


def _finder(view: LogViewState, log: AttemptLog, begin: int) -> Rows | None:
    """The search for the view's pattern, from a place on."""
    if view.find is None:
        return None
    patterns = (*view.choice.patterns, view.find)
    return Rows(log, LogFilter(view.choice.ranks, patterns), min(begin, len(log.order)))
