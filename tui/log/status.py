"""The last line of a log view: whether it follows, where the cursor is, filter and hits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tui.log.lines import LogBody
from tui.log.moments import clock
from tui.log.view import TAIL, chosen

Part = tuple[str, str]
"""Text and style."""


class LogStatus(Widget):
    """Shows as many of its parts as fit, the most important first."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    LogStatus { height: 1; background: $panel; color: $text-muted; }
    """

    parts: reactive[tuple[Part, ...]] = reactive(())

    def render(self) -> Content:
        """Join the parts that fit."""
        shown: list[Part] = []
        left = self.size.width
        for text, style in self.parts:
            left -= cell_len(text) + 2
            if left < 0 and shown:
                break
            shown.append((f" {text} ", style))
        return Content.assemble(*shown)


def badge(lines: LogBody) -> str:
    """FOLLOW, REPLAY before the end of one, whose cursor moves the lines; or PAUSED with the number of lines since."""
    if lines.view.following:
        return "● FOLLOW"
    if lines.contents.until < math.inf:
        return "● REPLAY"
    new = lines.lines.new_since(lines.view.seen)
    return f"■ PAUSED +{new:,}" if new else "■ PAUSED"


def parts(lines: LogBody, *, older: bool, loading: bool) -> list[Part]:
    """The parts of the status. `older`: earlier lines are on the host only; `loading`: they are being fetched."""
    view, progress = lines.view, lines.progress
    words = badge(lines)
    said: list[Part] = [(words, "bold $warning" if "PAUSED" in words else "bold $success")]
    if loading:
        said.append(("loading earlier lines …", "$accent"))
    if view.mark is not None:
        count = len(chosen(view, lines.lines))
        said.append((f"{count:,} line{'s' * (count != 1)} chosen, y copies", "$accent"))
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
        said.append((f"attempt {log.attempt}{_latest(log.attempt, log.attempts[-1])}", ""))
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
        return f"{count:,} line{'s' * (count != 1)}"
    row = lines.lines.row(view.cursor)
    place = lines.lines.place(row)
    when = f" {clock(log.time_of(log.order.items[place]))}" if log.timed and place < TAIL else ""
    return f"line {min(row + 1, count):,} of {count:,}{when}"


def _latest(shown: int | None, newest: int) -> str:
    """A note if a later attempt exists than the one shown. The progress line shows how many are allowed."""
    return f", latest {newest}" if shown != newest else ""
