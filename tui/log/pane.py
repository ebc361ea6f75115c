"""What a log view shows: an attempt, ranks, a filter, what is searched; and the thread that finds it out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.worker import get_current_worker

from tui.log.blame import Blame, failing_line, place_of
from tui.log.engine import Engine, Progress, Work
from tui.log.lines import LogLines
from tui.log.merge import LogSource
from tui.log.older import Older, moved, read_anew, wanted
from tui.log.prompt import LogPrompt
from tui.log.rows import LogFilter, Rows
from tui.log.search import Pattern
from tui.log.sources import AttemptLog, LogSources
from tui.log.status import LogStatus, badge, parts
from tui.log.view import LogViewState

FOCUSED_PACE = 10.0
"""Most redraws a second for new lines while the view has the focus."""
MARKED = 8
"""Ranks at most whose failing line is marked."""
PACE = 4.0
"""The same without it: a line over a slow link costs as much as it says."""


class LogPane(Vertical):
    """Shows the logs of a run from its local mirror, as its methods are told.

    Args:
        sources: The run's mirror.
        attempt: Which attempt; None: the latest, and each new one while following.
        read_only: Leave out what starts another program.
    """

    DEFAULT_CSS = """
    LogPane { height: 1fr; }
    """

    class OlderRequested(Message):
        """The first line held was reached, or nothing was found: the hosts have more, `wanted` of which comes next.

        It is answered by `read_anew`, once the mirror has it, or by `older_refused`.
        """

        def __init__(self, wanted: tuple[Older, ...]) -> None:
            super().__init__()
            self.wanted = wanted

    class _Progressed(Message):
        def __init__(self, progress: Progress) -> None:
            super().__init__()
            self.progress = progress

        def can_replace(self, message: Message) -> bool:
            """Only the newest counts."""
            return isinstance(message, LogPane._Progressed)

    class _ReadAnew(Message):
        def __init__(self, old: AttemptLog, progress: Progress) -> None:
            super().__init__()
            self.old = old
            self.progress = progress

    following: reactive[bool] = reactive(True)
    """Whether the end is shown and stays shown."""
    badge: reactive[str] = reactive("● FOLLOW")
    """● FOLLOW, or ■ PAUSED +1,234."""

    def __init__(
        self,
        sources: LogSources,
        *,
        attempt: int | None = None,
        read_only: bool = False,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.sources = sources
        self._read_only = read_only
        self._latest = attempt is None
        self._awaiting_hit = False
        self._keep_cursor = False
        self._loading = False
        self._refused = False
        self._blame = Blame()
        self._sought: int | None = None
        """A rank whose failing line is to be shown, once its lines are known."""
        log = sources.open(attempt)
        self._work = Work(log, Rows(log, LogFilter()))
        self._engine = Engine(self._work, self._tell)
        self.lines = LogLines(Progress(self._work, 0, 0, 0, complete=False, searched=True))
        self.lines.nothing = "No lines yet: the ranks have printed nothing."

    def compose(self) -> ComposeResult:
        """Lines, and under them the status or the prompt."""
        yield self.lines
        yield LogStatus()
        yield LogPrompt()

    def on_mount(self) -> None:
        """Begin to read."""
        self._run_engine()

    def on_unmount(self) -> None:
        """End the thread."""
        self._engine.stop()

    @work(thread=True, group="log")
    def _run_engine(self) -> None:
        self._engine.run()

    def _tell(self, progress: Progress) -> None:
        self.post_message(self._Progressed(progress))

    # What the app may ask for

    def refresh_sources(self) -> None:
        """Look for new lines and files at once: the mirror has grown."""
        self._engine.wake()

    def show_ranks(self, ranks: Iterable[int] | None) -> None:
        """Show only these ranks' lines; None: all."""
        self._choose(ranks=None if ranks is None else frozenset(ranks))

    def blame(self, blame: Blame) -> None:
        """Mark the lines of those who are to blame, and where each failed."""
        if blame != self._blame:
            self._blame = blame
            self._mark()

    def go_to_failing(self, rank: int) -> None:
        """Show one rank's lines at the one in which it failed, or the last."""
        log = self._work.log
        if self._blame.attempt != log.attempt and self._blame.attempt in log.attempts:
            self.show_attempt(self._blame.attempt)
        self.show_ranks([rank])
        self._sought = rank
        self._show_sought()

    def _mark(self) -> None:
        log, blame = self._work.log, self._blame
        found = (failing_line(log, rank, blame.said.get(rank, "")) for rank in sorted(blame.culprits)[:MARKED])
        failing = frozenset(entry for entry in found if entry is not None) if blame.attempt == log.attempt else ()
        self.lines.blame(blame, frozenset(failing))

    def _show_sought(self) -> None:
        progress = self.lines.progress
        if self._sought is None or progress.work is not self._work or not progress.complete:
            return
        log = self._work.log
        entry = failing_line(log, self._sought, self._blame.said.get(self._sought, ""))
        place = None if entry is None else place_of(log.order, entry)
        if place is not None:
            self._sought = None
            self.lines.jump(place)

    def show_attempt(self, attempt: int | None) -> None:
        """Show another attempt, from its end; None: the latest, and each new one while following."""
        self._latest = attempt is None or attempt == max(self._work.log.attempts, default=attempt)
        log = self.sources.open(attempt)
        view = self.lines.view
        self._set(replace(view, following=True, top=0, skip=0, cursor=0, mark=None, seen=0), log=log)

    def filter(self, pattern: Pattern | None) -> None:
        """Show only the lines that this fits; None: all."""
        self._choose(patterns=() if pattern is None else (pattern,))

    def find(self, pattern: Pattern | None, *, begin: bool = False) -> None:
        """Mark what this fits and go to the first such line after the top of the screen, or with `begin` of all."""
        view = self.lines.view
        self._awaiting_hit = pattern is not None
        start = 0 if begin else (self.lines.shown_places() or [0])[0] if view.following else view.cursor
        self._set(replace(view, find=pattern), start=start)

    def older_refused(self) -> None:
        """Ask no more before the first line is left and reached again."""
        self._loading, self._refused, self._awaiting_hit = False, True, False
        self._show_status()

    @work(thread=True, exclusive=True, group="log-anew")
    def read_anew(self) -> None:
        """Bring the lines into their order once more: earlier ones have come, or clocks are known better."""
        old, worker = self._work.log, get_current_worker()
        if old.attempt is not None:
            log = self.sources.open(old.attempt)
            progress = read_anew(log, self.lines.view.choice, lambda: worker.is_cancelled)
            if progress is not None:
                self.post_message(self._ReadAnew(old, progress))

    def fold(self, on: bool) -> None:
        """Show what several ranks printed one after another once."""
        self._choose(fold=on)

    def _choose(self, **changes: Any) -> None:
        view = self.lines.view
        self._set(replace(view, choice=replace(view.choice, **changes)))

    def _set(self, view: LogViewState, *, start: int | None = None, log: AttemptLog | None = None) -> None:
        """Make `view` the one shown, and let the engine find what it needs."""
        was = self._work
        log = log or was.log
        self._keep_cursor = view.choice != was.rows.choice and (self._keep_cursor or self.lines.cursor_seen)
        same = log is was.log and view.choice == was.rows.choice
        rows = was.rows if same else Rows(log, view.choice)
        find = was.find
        if not same or start is not None:
            begin = start if start is not None else find.start if find and log is was.log else 0
            find = _finder(view, log, begin)
        self._work = Work(log, rows, find)
        self._engine.set(self._work)
        self.lines.show(view)
        self._show_status()

    # What has become known

    def on_log_pane__progressed(self, event: _Progressed) -> None:
        """Show it, unless something else is wanted by now."""
        event.stop()
        progress = event.progress
        if progress.work is not self._work:
            return
        grown = progress.total != self.lines.progress.total
        self.lines.take(progress)
        if self._blame.culprits and (grown or progress.complete):
            self._mark()
        self._show_sought()
        if self._keep_cursor and progress.complete:
            self._keep_cursor = False
            self.lines.keep_cursor()
        if self._awaiting_hit and progress.hits:
            self._awaiting_hit = False
            self.go_to_hit(1, at_once=True)
        elif self._awaiting_hit and progress.complete and progress.searched:
            self._awaiting_hit = not (self._work.find and self._work.find.problem) and self.want_older()
        if self._latest and self.lines.view.following and progress.attempts[-1:] > (progress.work.log.attempt,):
            self.show_attempt(None)
        self._show_status()

    def go_to_hit(self, by: int, *, at_once: bool = False) -> None:
        """Go to the next place found, or the one before; over the end to the other side.

        Args:
            at_once: The place where the search began counts as well.
        """
        find = self._work.find
        if find is None or not len(find):
            return
        upto = self.lines.upto
        if by > 0:
            place = find.after(find.start if at_once else self.lines.paused().cursor + 1)
            place = find.after(0) if place is None or place >= upto else place
        else:
            place = find.before(self.lines.paused().cursor)
            place = find.before(upto) if place is None else place
        if place is not None and place < upto:
            self.lines.jump(place)

    def on_log_lines_moved(self, event: LogLines.Moved) -> None:
        """Say where the view is now, and ask for what is before its first line."""
        event.stop()
        if not self.lines.view.following and self.lines.at_first:
            self.want_older()
        else:
            self._refused = False
        self._show_status()

    def want_older(self) -> bool:
        """Ask for what the hosts have before the first lines; False where that is nothing, or not to be had."""
        lacking = self._lacking()
        if not lacking or self._refused:
            return False
        if not self._loading:
            self._loading = True
            self.post_message(self.OlderRequested(wanted(lacking)))
            self._show_status()
        return True

    def _lacking(self) -> list[LogSource]:
        """The logs shown whose beginnings are on their hosts alone."""
        ranks = self.lines.view.choice.ranks
        return [one for one in self._work.log.sources if one.index.base and (ranks is None or one.rank in ranks)]

    def on_log_pane__read_anew(self, event: _ReadAnew) -> None:
        """Show it in place of what was known, the same lines where they were."""
        event.stop()
        self._loading = False
        new = event.progress.work
        if event.old is self._work.log:
            view = moved(self.lines.view, event.old, new.log)
            if view.choice == new.rows.choice:
                # Lines and view change at once: there is no frame with one of them. The cursor's line stays in its row.
                y = self.lines.cursor_y
                self._work = replace(new, find=_finder(view, new.log, 0))
                self._engine.set(self._work)
                self.lines.take(replace(event.progress, work=self._work, searched=view.find is None))
                self.lines.show(view)
                if y is not None and not view.following:
                    self.lines.put_cursor(y)
                self.lines.refresh()
            else:
                self._set(view, log=new.log)
        self._show_status()

    def on_descendant_focus(self) -> None:
        """Redraw as fast as eyes can use."""
        self._engine.pace = FOCUSED_PACE

    def on_descendant_blur(self) -> None:
        """Spare the link."""
        self._engine.pace = PACE

    def _show_status(self) -> None:
        if not self.is_mounted:
            return
        self.following = self.lines.view.following
        self.badge = badge(self.lines)
        older = bool(self._lacking())
        self.query_one(LogStatus).parts = tuple(parts(self.lines, older=older, loading=self._loading))


def _finder(view: LogViewState, log: AttemptLog, begin: int) -> Rows | None:
    """What looks for what the view marks, from a place on."""
    if view.find is None:
        return None
    patterns = (*view.choice.patterns, view.find)
    return Rows(log, LogFilter(view.choice.ranks, patterns), min(begin, len(log.order)))
