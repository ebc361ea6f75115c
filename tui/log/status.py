"""The last line of a log view: its status (following, cursor, filter, hits), or the prompt in place of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Click, Resize
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Input, Static

from disttui.runner.errors import InputError
from disttui.runner.formatting import amount, clock
from disttui.tui.log.lines import LogBody
from disttui.tui.log.search import Pattern
from disttui.tui.log.view import TAIL, chosen

Part = tuple[str, str]
"""A text and its style."""


class LogStatus(Widget):
    """Shows as many of its parts as fit, the most important first."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    LogStatus { height: 1; background: $panel; color: $text-muted; }
    """

    parts: reactive[tuple[Part, ...]] = reactive(())

    def render(self) -> Content:
        shown: list[Part] = []
        left = self.size.width
        for text, style in self.parts:
            left -= cell_len(text) + 2
            if left < 0 and shown:
                break
            shown.append((f" {text} ", style))
        return Content.assemble(*shown)


def badge(lines: LogBody) -> str:
    """FOLLOW; REPLAY before the end of a replay, whose cursor moves the lines; or PAUSED and how many lines are new."""
    if lines.view.following:
        return "● FOLLOW"
    if lines.contents.until < math.inf:
        return "● REPLAY"
    new = lines.lines.new_since(lines.view.seen)
    return f"■ PAUSED +{new:,}" if new else "■ PAUSED"


def parts(lines: LogBody, *, older: bool, loading: bool, lag: str = "") -> list[Part]:
    """The parts of the status; `older` if earlier lines are only on the host, `loading` if they are being fetched."""
    view, progress = lines.view, lines.progress
    words = badge(lines)
    said: list[Part] = [(words, "bold $warning" if "PAUSED" in words else "bold $success")]
    if lag:
        said.append((f"{lag}, S skips", "bold $warning"))
    if loading:
        said.append(("loading earlier lines …", "$accent"))
    if view.mark is not None:
        count = len(chosen(view, lines.lines))
        said.append((f"{amount(count, 'line')} selected, y copies", "$accent"))
    said += _found(lines)
    if view.choice.patterns:
        filtered = f"& {view.choice.patterns[0]}{'' if progress.complete else ' …'}"
        problem = progress.work.rows.problem
        said.append((f"✗ {filtered}: it {problem}", "bold $error") if problem else (filtered, "$accent"))
    said.append((_ranks(view.choice.ranks), "bold"))
    said.append((_where(lines), ""))
    said += [(word, "") for word, on in (("wrap", view.wrap), ("fold ×N", view.choice.fold)) if on]
    log = progress.work.log
    if len(log.attempts) > 1:
        # The progress line shows how many attempts are allowed.
        later = f", latest {log.attempts[-1]}" if log.attempt != log.attempts[-1] else ""
        earlier = max((attempt for attempt in log.attempts if attempt < (log.attempt or 0)), default=None)
        said.append((f"attempt {log.attempt}{later}" + (f", [ shows {earlier}" if earlier else ""), ""))
    if not log.loaded:
        said.append(("reading…", "$accent"))
    if older and not loading:
        said.append(("older lines on the host", ""))
    return said


def _ranks(ranks: frozenset[int] | None) -> str:
    if ranks is None:
        return "all ranks"
    return f"rank{'s' * (len(ranks) != 1)} " + ",".join(map(str, sorted(ranks)[:4])) + ("…" if len(ranks) > 4 else "")


def _found(lines: LogBody) -> Sequence[Part]:
    view, progress, find = lines.view, lines.progress, lines.progress.work.find
    if view.find is None or find is None:
        return ()
    label = "/ errors" if view.find.hints else f"/ {view.find}"
    if find.problem:
        return ((f"✗ {label} {progress.hits:,}: it {find.problem}", "bold $error"),)
    hits = progress.hits if lines.contents.upto == TAIL else find.row_at(lines.contents.upto)
    if not hits:
        return ((f"{label} {'not found' if progress.searched else '…'}", "$warning"),)
    at = find.row_at(view.cursor) + 1 if find.after(view.cursor) == view.cursor else 0
    return ((f"{label} {f'{at:,} of ' if at else ''}{hits:,}{'' if progress.searched else '…'}", "$accent"),)


def _where(lines: LogBody) -> str:
    view, log, count = lines.view, lines.progress.work.log, lines.lines.count
    if view.following or not count:
        return amount(count, "line")
    row = lines.lines.row(view.cursor)
    place = lines.lines.place(row)
    when = f" {clock(log.time_of(log.order.items[place]))}" if log.timed and place < TAIL else ""
    return f"line {min(row + 1, count):,} of {count:,}{when}"


NARROW = 60
"""Width in cells below which switches are shown by their first letters; the footer has their keys."""
SWITCHES = ("regex", "case", "inverse")
"""The switches in the order of display."""
LABELS = {"find": "/ find", "filter": "& filter", "time": "t time"}


class _PromptLine(Input):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "go", id="log.prompt.go", tooltip="find, filter or go to what is typed")
    ]


class LogPrompt(Horizontal):
    """Asks for a pattern or a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", id="log.prompt.close"),
        Binding(
            "ctrl+r", "switch('regex')", "regex", id="log.prompt.regex", tooltip="a regular expression, or plain text"
        ),
        Binding("ctrl+t", "switch('case')", "case", id="log.prompt.case", tooltip="match case"),
        Binding("ctrl+n", "switch('inverse')", "not", id="log.prompt.not", tooltip="lines that do not match"),
    ]
    DEFAULT_CSS = """
    LogPrompt {
        height: 1;
        display: none;
        & > #log-prompt-label { width: auto; padding: 0 1; color: $accent; text-style: bold; }
        & > Input { width: 1fr; }
        & > #log-prompt-flags {
            width: auto; max-width: 70%; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis;
        }
    }
    """

    class Answered(Message):
        """The user has entered a pattern (None removes the old one) or a time."""

        def __init__(self, kind: str, pattern: Pattern | None, text: str) -> None:
            super().__init__()
            self.kind = kind
            self.pattern = pattern
            self.text = text

    class Closed(Message):
        """The user has left the prompt without an answer."""

    kind: reactive[str] = reactive("find")
    regex: reactive[bool] = reactive(False)
    case: reactive[bool] = reactive(False)
    inverse: reactive[bool] = reactive(False)
    problem: reactive[str] = reactive("")
    _switches: tuple[tuple[int, str], ...] = ()
    """(width in cells, name) of each switch that is shown."""

    def compose(self) -> ComposeResult:
        """Yield the label, the input and the switches."""
        yield Static(id="log-prompt-label", markup=False)
        yield _PromptLine(compact=True, select_on_focus=False)
        yield Static(id="log-prompt-flags", markup=False)

    def ask(self, kind: str, current: Pattern | None) -> None:
        """Open the prompt for `find`, `filter` or `time`, with the current pattern."""
        self.kind, self.problem = kind, ""
        if current is not None:
            self.regex, self.case, self.inverse = current.regex, current.case, current.inverse
        elif kind != "filter":
            self.inverse = False
        box = self.query_one(Input)
        box.value = current.text if current else ""
        # Typing replaces the current pattern instead of extending it.
        box.select_all()
        box.placeholder = "12:03:05 or +1:30 from the start" if kind == "time" else ""
        self.display = True
        # Immediately, because keys typed ahead belong to the prompt.
        self.screen.set_focus(box)
        self._say()

    def fail(self, error: InputError) -> None:
        """Show what is wrong with the answer, and stay open."""
        self.problem = error.sentence

    def watch_problem(self) -> None:
        self._say()

    def _say(self) -> None:
        if not self.is_mounted:
            return
        narrow = self.app.size.width < NARROW
        label = LABELS[self.kind]
        self.query_one("#log-prompt-label", Static).update(label[0] if narrow else label)
        self._switches = ()
        flags = [("regex", self.regex), ("case", self.case)]
        if self.kind == "filter":
            flags.append(("not", self.inverse))
        if self.problem:
            # With little room, only the part that explains what is wrong with this text.
            short = len(self.problem) + 4 > self.size.width * 7 // 10 and ": " in self.problem
            words = self.problem.partition(": ")[2] if short else self.problem
            shown = Content.assemble((f"✗ {words}", "$error"))
        elif self.kind == "time":
            shown = Content("")
        else:
            texts = [(f"{'●' if on else '○'}{word[0] if narrow else f' {word}'} ", on) for word, on in flags]
            shown = Content.assemble(*((text, "$accent" if on else "") for text, on in texts))
            self._switches = tuple((cell_len(text), name) for (text, _), name in zip(texts, SWITCHES, strict=False))
        self.query_one("#log-prompt-flags", Static).update(shown)

    def on_click(self, event: Click) -> None:
        """Toggle the switch under the pointer, and focus the input."""
        flags = self.query_one("#log-prompt-flags").content_region
        at = flags.x
        for width, name in self._switches if event.screen_y == flags.y else ():
            if at <= event.screen_x < at + width:
                self.action_switch(name)
            at += width
        self.query_one(Input).focus()

    def on_resize(self, event: Resize) -> None:
        """Fit the texts to the new width, and keep the cursor visible."""
        self._say()
        self.call_after_refresh(self._show_cursor)

    def _show_cursor(self) -> None:
        if not (self.is_mounted and self.is_attached):  # its screen is opening or closing
            return
        box = self.query_one(Input)
        cursor = Region(cell_len(box.value[: box.cursor_position]), 0, 1, 1)
        box.scroll_to_region(cursor, force=True, animate=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "switch" or self.kind == "filter" or (self.kind == "find" and parameters != ("inverse",))

    def action_switch(self, name: str) -> None:
        """Toggle regex, case or inverse."""
        setattr(self, name, not getattr(self, name))
        self.problem = ""
        self._say()

    def action_close(self) -> None:
        """Leave the prompt without an answer."""
        self.post_message(self.Closed())

    def on_input_changed(self, event: Input.Changed) -> None:
        """Remove the error message, because the new text may be correct."""
        event.stop()
        self.problem = ""

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Post the answer if it is valid, or else show the error."""
        event.stop()
        inverse = self.inverse and self.kind == "filter"
        pattern = Pattern(event.value, self.regex, self.case, inverse) if event.value else None
        try:
            if pattern is not None and self.kind != "time":
                _ = pattern.expression
        except InputError as error:
            self.fail(error)
            return
        self.post_message(self.Answered(self.kind, pattern, event.value))
