"""The log viewer: follows, searches, filters, folds and copies millions of lines of all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.worker import get_current_worker

from disttui.runner.errors import InputError
from disttui.tui.log.ansi import safe_text
from disttui.tui.log.engine import Older, Reading, SearchProgress, moved, read_anew, wanted
from disttui.tui.log.lines import LogBody
from disttui.tui.log.merge import LINE
from disttui.tui.log.search import ERROR, Pattern
from disttui.tui.log.sources import AttemptLog, Blame, LogSources, failing_line, moment, place_at, place_of
from disttui.tui.log.status import LogPrompt, LogStatus, parts
from disttui.tui.log.view import LogViewState

MOST = 100_000
"""Maximum number of lines that are copied together."""


def copied(log: AttemptLog, entries: Iterable[int], *, prefixed: bool) -> str:
    """Join lines of the order to a text; if `prefixed`, with host and rank before each."""
    found = []
    for entry in entries:
        text = safe_text(log.read(entry))
        found.append(f"{log.source_of(entry).label} │ {text}" if prefixed else text)
    return "\n".join(found)


FOCUSED_PACE = 10.0
"""Maximum redraws per second for new lines while the view has the focus."""
MARKED = 8
"""Maximum number of ranks whose failing line is marked."""
PACE = 4.0
"""Maximum redraws per second without the focus, because each costs bandwidth on a slow link."""
NOTHING_YET = "The ranks have printed nothing yet."


class LogView(Vertical):
    """Shows the logs of a run from its local mirror, controlled by keys and methods.

    Args:
        sources: The logs in the run's mirror.
        read_only: Whether to hide the pager, which is another program.
    """

    DEFAULT_CSS = """
    LogView { height: 1fr; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "ask('find')", "find", key_display="/", id="log.find", tooltip="find text"),
        Binding("n", "hit(1)", "next", show=False, id="log.next", tooltip="next match"),
        Binding("N", "hit(-1)", "previous", show=False, id="log.previous", tooltip="previous match"),
        Binding(
            "ampersand", "ask('filter')", "filter", key_display="&", id="log.filter", tooltip="show only matching lines"
        ),
        Binding("e", "error", "first error", id="log.error", tooltip="first error; n: next"),
        Binding("y", "yank", "copy", id="log.copy", tooltip="copy the line or range"),
        Binding("Y", "yank_shown", "copy all", show=False, id="log.copy_shown", tooltip="copy the visible lines"),
        Binding("x", "fold", "fold", show=False, id="log.fold",
                tooltip="show identical lines of several ranks once, ×N"),
        Binding("t", "ask('time')", "time", show=False, id="log.time", tooltip="go to a time"),
        Binding("right_square_bracket", "attempt(1)", "next attempt", show=False, key_display="]", id="log.later"),
        Binding(
            "left_square_bracket", "attempt(-1)", "previous attempt", show=False, key_display="[", id="log.earlier"
        ),
        *(Binding(str(rank), f"rank({rank})", f"rank {rank}", show=False, id=f"log.rank_{rank}") for rank in range(10)),
        Binding("a", "all_ranks", "all ranks", show=False, id="log.all", tooltip="lines of all ranks, by time"),
        Binding("S", "skip", "skip", show=False, id="log.skip", tooltip="skip to the end of a lagging log"),
        Binding("o", "pager", "pager", show=False, id="log.pager", tooltip="open the file in $PAGER"),
        Binding(
            "escape", "back", "back", show=False, id="log.back", tooltip="clear range, search or filter"
        ),
    ]  # fmt: skip

    class OlderRequested(Message):
        """Requests the earlier lines `wanted` from the hosts, after the first line was reached or a search had no hit.

        The receiver calls `read_anew` when the mirror has them, or else `older_refused`.
        """

        def __init__(self, wanted: tuple[Older, ...]) -> None:
            super().__init__()
            self.wanted = wanted

    class SkipRequested(Message):
        """Requests to skip the pending parts of the logs."""

    class Loaded(Message):
        """All existing lines of an attempt are shown for the first time."""

    class RankChosen(Message):
        """A key has chosen a rank, or all ranks (None)."""

        def __init__(self, rank: int | None) -> None:
            super().__init__()
            self.rank = rank

    class _Progressed(Message):
        def __init__(self, progress: SearchProgress) -> None:
            super().__init__()
            self.progress = progress

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LogView._Progressed)

    class Yanked(Message):
        """Requests to copy `text`, which has `lines` lines, to the clipboard."""

        def __init__(self, text: str, lines: int) -> None:
            super().__init__()
            self.text = text
            self.lines = lines

    class PagerRequested(Message):
        """Requests to open a file in the user's pager at a line, counted from 1."""

        def __init__(self, path: Path, line: int) -> None:
            super().__init__()
            self.path = path
            self.line = line

    def __init__(self, sources: LogSources, *, read_only: bool = False) -> None:
        super().__init__()
        self.sources = sources
        self._read_only = read_only
        self._latest = True
        """Whether to show the latest attempt, and each new one while following."""
        self._awaiting_hit: int | None = None
        """While the first hit is searched for, `lines.steered` at its start; a later move cancels the jump to it."""
        self._keep_cursor = False
        self._loading = False
        self._loaded: AttemptLog | None = None
        self._lag = ""
        self._refused = False
        self._blame = Blame()
        self._sought: tuple[int, int] | None = None
        """A rank whose failing line to show once its lines are known, and `lines.steered` at the request."""
        self.reading = Reading(sources, self._tell)
        self.lines = LogBody(self.reading.nothing_yet)
        self.lines.nothing = NOTHING_YET

    def compose(self) -> ComposeResult:
        """Yield the lines, the status and the prompt."""
        yield self.lines
        yield LogStatus()
        yield LogPrompt()

    def on_mount(self) -> None:
        self._run_engine()

    def on_unmount(self) -> None:
        self.reading.engine.stop()

    @work(thread=True, group="log")
    def _run_engine(self) -> None:
        self.reading.engine.run()

    def _tell(self, progress: SearchProgress) -> None:
        self.post_message(self._Progressed(progress))

    @property
    def following(self) -> bool:
        """Whether the end is shown and stays visible."""
        return self.lines.view.following

    # Called by screens

    def show_ranks(self, ranks: Iterable[int] | None) -> None:
        """Show only the lines of these ranks; None shows all."""
        self._choose(ranks=None if ranks is None else frozenset(ranks))

    def blame(self, blame: Blame) -> None:
        """Mark the lines of culprits and victims, and where each culprit failed."""
        if blame != self._blame:
            self._blame = blame
            self._mark()

    def go_to_failing(self, rank: int) -> None:
        """Show only one rank's lines, at the line where it failed, or else at the last."""
        log = self.reading.log
        if self._blame.attempt != log.attempt and self._blame.attempt in log.attempts:
            self.show_attempt(self._blame.attempt)
        self.show_ranks([rank])
        self._sought = rank, self.lines.steered
        self._show_sought()

    def _mark(self) -> None:
        log, blame = self.reading.log, self._blame
        found = (failing_line(log, rank, blame.said.get(rank, "")) for rank in sorted(blame.culprits)[:MARKED])
        failing = frozenset(entry for entry in found if entry is not None) if blame.attempt == log.attempt else ()
        self.lines.blame(blame, frozenset(failing))

    def _show_sought(self) -> None:
        progress = self.lines.progress
        if self._sought is None or progress.work is not self.reading.work or not progress.complete:
            return
        log, (rank, steered) = self.reading.log, self._sought
        if steered != self.lines.steered:
            self._sought = None
            return
        entry = failing_line(log, rank, self._blame.said.get(rank, ""))
        place = None if entry is None else place_of(log.order, entry)
        if place is not None:
            self._sought = None
            self.lines.jump(place)

    def show_attempt(self, attempt: int | None) -> None:
        """Show another attempt, from its end; None shows the latest, and each new one while following."""
        self._latest = attempt is None or attempt == max(self.reading.log.attempts, default=attempt)
        log = self.sources.open(attempt)
        view = self.lines.view
        self._set(replace(view, following=True, top=0, skip=0, cursor=0, mark=None, seen=0), log=log)

    def filter(self, pattern: Pattern | None) -> None:
        """Show only lines that match; None shows all."""
        self._choose(patterns=() if pattern is None else (pattern,))

    def find(self, pattern: Pattern | None, *, begin: bool = False) -> None:
        """Mark matches; go to the first from the cursor (or the screen's top while following), or of all if `begin`."""
        view = self.lines.view
        self._awaiting_hit = None if pattern is None else self.lines.steered
        start = 0 if begin else (self.lines.shown_places() or [0])[0] if view.following else view.cursor
        self._set(replace(view, find=pattern), start=start)

    def show_lag(self, lag: str) -> None:
        """Show how far the mirrored logs lag behind those of the hosts."""
        if lag != self._lag:
            self._lag = lag
            self._show_status()

    def action_skip(self) -> None:
        if self._lag:
            self.post_message(self.SkipRequested())

    def older_refused(self) -> None:
        """End the request for earlier lines; make no other before the view leaves the first line and returns to it."""
        self._loading, self._refused, self._awaiting_hit = False, True, None
        self._show_status()

    @work(thread=True, exclusive=True, group="log-anew")
    def read_anew(self) -> None:
        """Sort the lines again, after earlier ones have arrived or the clock offsets have changed."""
        old, worker = self.reading.log, get_current_worker()
        if old.attempt is not None:
            log = self.sources.open(old.attempt)
            progress = read_anew(log, self.lines.view.choice, lambda: worker.is_cancelled)
            if progress is not None:
                self.call_later(self._take_anew, old, progress)

    def _choose(self, **changes: Any) -> None:
        view = self.lines.view
        self._set(replace(view, choice=replace(view.choice, **changes)))

    def _set(self, view: LogViewState, *, start: int | None = None, log: AttemptLog | None = None) -> None:
        """Show `view`, and let the engine find the lines that it needs."""
        changed = view.choice != self.reading.work.rows.choice
        self._keep_cursor = changed and (self._keep_cursor or self.lines.cursor_seen)
        self.reading.set(view, start=start, log=log)
        self.lines.show(view)
        self._show_status()

    # Reports of the engine

    def on_log_view__progressed(self, event: _Progressed) -> None:
        """Show the report, unless the view has changed since then."""
        event.stop()
        progress = event.progress
        if progress.work is not self.reading.work:
            return
        grown = progress.total != self.lines.progress.total
        self.lines.take(progress)
        if self._blame.culprits and (grown or progress.complete):
            self._mark()
        self._show_sought()
        if progress.complete and self._loaded is not progress.work.log:
            self._loaded = progress.work.log
            self.post_message(self.Loaded())
        if self._keep_cursor and progress.complete:
            self._keep_cursor = False
            self.lines.keep_cursor()
        awaits = self._awaiting_hit == self.lines.steered
        if awaits and progress.hits:
            self._awaiting_hit = None
            self.action_hit(1, at_once=True)
        elif awaits and progress.complete and progress.searched:
            find = self.reading.work.find
            if (find and find.problem) or not self.want_older():
                self._awaiting_hit = None
        if self._latest and self.lines.view.following and progress.attempts[-1:] > (progress.work.log.attempt,):
            self.show_attempt(None)
        self._show_status()

    def action_hit(self, by: int, *, at_once: bool = False) -> None:
        """Go to the next or previous hit; wrap around at the ends.

        Args:
            at_once: Include the place where the search began.
        """
        find = self.reading.work.find
        if find is None or not len(find):
            return
        upto = self.lines.contents.upto
        if by > 0:
            place = find.after(find.start if at_once else self.lines.paused().cursor + 1)
            place = find.after(0) if place is None or place >= upto else place
        else:
            place = find.before(self.lines.paused().cursor)
            place = find.before(upto) if place is None else place
        if place is not None and place < upto:
            self.lines.jump(place)

    def on_log_body_moved(self, event: LogBody.Moved) -> None:
        """Update the status, and request earlier lines if the first one was reached."""
        event.stop()
        if not self.lines.view.following and self.lines.at_first:
            self.want_older()
        else:
            self._refused = False
        self._show_status()

    def want_older(self) -> bool:
        """Request earlier lines from the hosts; return False if there are none, or the last request was refused."""
        lacking = self.reading.lacking(self.lines.view.choice.ranks)
        if not lacking or self._refused:
            return False
        if not self._loading:
            self._loading = True
            self.post_message(self.OlderRequested(wanted(lacking)))
            self._show_status()
        return True

    def _take_anew(self, old: AttemptLog, progress: SearchProgress) -> None:
        """Show the new order, with the same lines at the same position on the screen."""
        self._loading = False
        new = progress.work
        self._loaded = new.log
        if old is self.reading.log:
            view = moved(self.lines.view, old, new.log)
            if view.choice == new.rows.choice:
                # Change lines and view together, so that no frame shows only one of them; the cursor's row stays.
                y = self.lines.cursor_y
                self.reading.replace(view, new)
                self.lines.take(replace(progress, work=self.reading.work, searched=view.find is None))
                self.lines.show(view)
                if y is not None and not view.following:
                    self.lines.put_cursor(y)
                self.lines.refresh()
            else:
                self._set(view, log=new.log)
        self._show_status()

    def on_descendant_focus(self) -> None:
        self.reading.engine.pace = FOCUSED_PACE

    def on_descendant_blur(self) -> None:
        """Redraw at most PACE times per second, to save bandwidth."""
        self.reading.engine.pace = PACE

    def _show_status(self) -> None:
        if not self.is_mounted:
            return
        older = bool(self.reading.lacking(self.lines.view.choice.ranks))
        self.query_one(LogStatus).parts = tuple(parts(self.lines, older=older, loading=self._loading, lag=self._lag))

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the pager only without --read-only, and no keys of the log while the prompt is open."""
        asking = any(prompt.display for prompt in self.query(LogPrompt))
        return not asking and not (action == "pager" and self._read_only)

    def action_ask(self, kind: str) -> None:
        view = self.lines.view
        current = view.find if kind == "find" else next(iter(view.choice.patterns), None) if kind == "filter" else None
        # The prompt replaces the status, so that the lines above do not move.
        self.query_one(LogStatus).display = False
        self.query_one(LogPrompt).ask(kind, None if current is ERROR else current)

    def on_log_prompt_answered(self, event: LogPrompt.Answered) -> None:
        """Find, filter or go to the time."""
        event.stop()
        if event.kind == "time" and not self._go_to_time(event.text):
            return
        if event.kind == "find":
            self.find(event.pattern)
        elif event.kind == "filter":
            self.filter(event.pattern)
        self._close_prompt()

    def on_log_prompt_closed(self, event: LogPrompt.Closed) -> None:
        event.stop()
        self._close_prompt()

    def _close_prompt(self) -> None:
        self.query_one(LogPrompt).display = False
        self.query_one(LogStatus).display = True
        self.screen.set_focus(self.lines)

    def _go_to_time(self, text: str) -> bool:
        progress = self.lines.progress
        log = progress.work.log
        try:
            if not log.timed or not progress.total:
                raise InputError("this attempt's lines have no times")
            time = moment(text, log.time_of(log.order.items[0]))
        except InputError as error:
            self.query_one(LogPrompt).fail(error)
            return False
        self.lines.jump(min(place_at(log, time, progress.total), progress.total - 1))
        return True

    def action_error(self) -> None:
        """Go to the first line that looks like an error; fetch earlier lines, because it may be among them."""
        self.find(ERROR, begin=True)
        self.want_older()

    def action_fold(self) -> None:
        """Toggle whether identical lines of several ranks are shown once."""
        self._choose(fold=not self.lines.view.choice.fold)

    def action_rank(self, rank: int) -> None:
        if rank in self.lines.progress.work.log.ranks:
            self.show_ranks([rank])
            self.post_message(self.RankChosen(rank))

    def action_all_ranks(self) -> None:
        self.show_ranks(None)
        self.post_message(self.RankChosen(None))

    def action_attempt(self, by: int) -> None:
        """Show the next or previous attempt."""
        log = self.lines.progress.work.log
        others = [number for number in log.attempts if (number - (log.attempt or 0)) * by > 0]
        if others:
            self.show_attempt(min(others) if by > 0 else max(others))

    def action_back(self) -> None:
        """Remove the range, or else the search, or else the filter."""
        view = self.lines.view
        if view.mark is not None:
            self.lines.action_mark()
        elif view.find is not None:
            self.find(None)
        elif view.choice.patterns:
            self.filter(None)

    def action_yank(self) -> None:
        """Copy the range, or the cursor's line."""
        self._yank(self.lines.chosen_places())

    def action_yank_shown(self) -> None:
        self._yank(self.lines.shown_places())

    @work(thread=True, group="log-yank")
    def _yank(self, places: list[int]) -> None:
        log = self.lines.progress.work.log
        entries = [log.order.items[place] for place in places[:MOST]]
        if entries:
            text = copied(log, entries, prefixed=self.lines.contents.prefixed)
            self.post_message(self.Yanked(text, len(entries)))

    def action_pager(self) -> None:
        """Request the pager for the file of the cursor's line."""
        places = self.lines.chosen_places() or self.lines.shown_places()
        if places:
            log = self.lines.progress.work.log
            entry = log.order.items[places[-1]]
            self.post_message(self.PagerRequested(log.source_of(entry).index.path, (entry & LINE) + 1))
