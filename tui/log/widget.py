"""The log viewer: millions of lines of all ranks, followed, found, filtered, folded and copied."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.message import Message

from runner.errors import InputError
from tui.log.copying import MOST, copied
from tui.log.merge import LINE
from tui.log.moments import moment, place_at
from tui.log.pane import LogPane
from tui.log.prompt import LogPrompt
from tui.log.search import ERROR
from tui.log.status import LogStatus


class LogView(LogPane):
    """A log view with its keys.

    Args:
        sources: The run's mirror.
        attempt: Which attempt; None: the latest, and each new one while following.
        read_only: Leave out what starts another program.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "ask('find')", "find", key_display="/", id="log.find", tooltip="Find text"),
        Binding("n", "hit(1)", "next", show=False, id="log.next", tooltip="Next place found"),
        Binding("N", "hit(-1)", "previous", show=False, id="log.previous", tooltip="Place found before"),
        Binding(
            "ampersand", "ask('filter')", "filter", key_display="&", id="log.filter", tooltip="Show only some lines"
        ),
        Binding("e", "error", "first error", id="log.error", tooltip="Go to the first error; n for the next"),
        Binding("y", "yank", "copy", id="log.copy", tooltip="Copy the line, or the range"),
        Binding("Y", "yank_shown", "copy all", show=False, id="log.copy_shown", tooltip="Copy all lines on the screen"),
        Binding(
            "x", "fold", "fold", show=False, id="log.fold", tooltip="Show what several ranks printed once, with ×N"
        ),
        Binding("t", "ask('time')", "time", show=False, id="log.time", tooltip="Go to a time"),
        Binding("right_square_bracket", "attempt(1)", "next attempt", show=False, key_display="]", id="log.later"),
        Binding("left_square_bracket", "attempt(-1)", "attempt before", show=False, key_display="[", id="log.earlier"),
        *(Binding(str(rank), f"rank({rank})", f"Rank {rank}", show=False, id=f"log.rank_{rank}") for rank in range(10)),
        Binding("a", "all_ranks", "all ranks", show=False, id="log.all", tooltip="Lines of all ranks, by time"),
        Binding("o", "pager", "pager", show=False, id="log.pager", tooltip="Open the file in $PAGER"),
        Binding(
            "escape", "back", "back", show=False, id="log.back", tooltip="Drop the range, or the search, or the filter"
        ),
    ]

    class Yanked(Message):
        """Lines were copied: the app brings `text` to the clipboard."""

        def __init__(self, text: str, lines: int) -> None:
            super().__init__()
            self.text = text
            self.lines = lines

    class PagerRequested(Message):
        """A file is to be opened in the user's pager, at a line counted from 1."""

        def __init__(self, path: Path, line: int) -> None:
            super().__init__()
            self.path = path
            self.line = line

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The pager is another program."""
        return not (action == "pager" and self._read_only)

    def action_ask(self, kind: str) -> None:
        """Open the prompt."""
        view = self.lines.view
        current = view.find if kind == "find" else next(iter(view.choice.patterns), None) if kind == "filter" else None
        # In its place, so that the lines above stay where they are.
        self.query_one(LogStatus).display = False
        self.query_one(LogPrompt).ask(kind, None if current is ERROR else current)

    def on_log_prompt_answered(self, event: LogPrompt.Answered) -> None:
        """Do what was asked for."""
        event.stop()
        if event.kind == "time" and not self._go_to_time(event.text):
            return
        if event.kind == "find":
            self.find(event.pattern)
        elif event.kind == "filter":
            self.filter(event.pattern)
        self._close_prompt()

    def on_log_prompt_closed(self, event: LogPrompt.Closed) -> None:
        """Back to the lines."""
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

    def action_hit(self, by: int) -> None:
        """Go to the next place found, or the one before."""
        self.go_to_hit(by)

    def action_error(self) -> None:
        """Go to the first line that looks like an error; the first of all may be on its host alone."""
        self.find(ERROR, begin=True)
        self.want_older()

    def action_fold(self) -> None:
        """Show identical lines of several ranks once, or each."""
        self.fold(not self.lines.view.choice.fold)

    def action_rank(self, rank: int) -> None:
        """Show one rank."""
        if rank in self.lines.progress.work.log.ranks:
            self.show_ranks([rank])

    def action_all_ranks(self) -> None:
        """Show all ranks."""
        self.show_ranks(None)

    def action_attempt(self, by: int) -> None:
        """Show the next attempt, or the one before."""
        log = self.lines.progress.work.log
        others = [number for number in log.attempts if (number - (log.attempt or 0)) * by > 0]
        if others:
            self.show_attempt(min(others) if by > 0 else max(others))

    def action_back(self) -> None:
        """Drop the range, or the search's marks, or the filter: one at a time."""
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
        """Copy all lines on the screen."""
        self._yank(self.lines.shown_places())

    @work(thread=True, group="log-yank")
    def _yank(self, places: list[int]) -> None:
        log = self.lines.progress.work.log
        entries = [log.order.items[place] for place in places[:MOST]]
        if entries:
            text = copied(log, entries, prefixed=self.lines.prefixed)
            self.post_message(self.Yanked(text, len(entries)))

    def action_pager(self) -> None:
        """Ask the app to open the cursor's file in the pager."""
        places = self.lines.chosen_places() or self.lines.shown_places()
        if places:
            log = self.lines.progress.work.log
            entry = log.order.items[places[-1]]
            self.post_message(self.PagerRequested(log.source_of(entry).index.path, (entry & LINE) + 1))
