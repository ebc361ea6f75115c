"""The lines of a log on the screen, moved by keys and mouse."""

from __future__ import annotations

import re
from dataclasses import replace
from time import thread_time
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from disttui.tui.log.contents import Contents, PaintedLine
from disttui.tui.log.engine import SearchProgress
from disttui.tui.log.search import Pattern
from disttui.tui.log.sources import Blame
from disttui.tui.log.view import TAIL, Lines, LogViewState, chosen, follow, go, move, on_screen, page, pause, scroll
from disttui.tui.theme import label_colours, look

WHEEL = 3
"""Screen rows that one step of the mouse wheel moves."""
MARKING = 0.1
"""Seconds of CPU time per drawing for marking hits; hits beyond that stay unmarked."""
_LEVEL = re.compile(
    r"(?P<error>\b(?:CRITICAL|FATAL|ERROR)\b|^(?:\w+\.)*\w*(?:Error|Exception)(?=:)|^Traceback \(most recent call)"
    r"|(?P<warning>\b(?:WARN|WARNING)\b|\b\w*Warning(?=:))|(?P<debug>\b(?:DEBUG|TRACE)\b)"
)
_HEAD = 160
"""Number of characters at the start of a line that are searched for its level."""
SIDEWAYS = 8
"""Cells by which one key press scrolls to the side."""


class LogBody(Widget, can_focus=True):
    """The part of a log view that shows lines: a `LogViewState` of `Contents`."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "log-lines--cursor", "log-lines--range", "log-lines--gutter", "log-lines--match", "log-lines--count",
        "log-lines--bar", "log-lines--thumb", "log-lines--empty", "log-lines--failed", "log-lines--blocking",
        "log-lines--victim", "log-lines--error", "log-lines--warning", "log-lines--debug",
    }  # fmt: skip
    DEFAULT_CSS = """
    LogBody {
        height: 1fr;
        & > .log-lines--cursor { background: $boost; }
        &:focus > .log-lines--cursor { background: $block-cursor-background; }
        & > .log-lines--range { background: $primary 20%; }
        & > .log-lines--gutter { color: $text-accent; text-style: bold; }
        & > .log-lines--match { background: $warning; color: auto 95%; text-style: bold; }
        & > .log-lines--count { color: $text-accent; }
        & > .log-lines--bar { color: $foreground 30%; }
        & > .log-lines--thumb { color: $foreground 50%; }
        & > .log-lines--empty { color: $text-muted; }
        & > .log-lines--failed { color: $text-error; text-style: bold; }
        & > .log-lines--blocking { color: $text-warning; text-style: bold; }
        & > .log-lines--victim { color: $text-muted; }
        & > .log-lines--error { color: $text-error; }
        & > .log-lines--warning { color: $text-warning; }
        & > .log-lines--debug { color: $text-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f,G,end", "follow", "follow", id="log.follow", tooltip="follow the log"),
        Binding("down,j", "move(1)", "down", show=False, id="log.down", tooltip="next line"),
        Binding("up,k", "move(-1)", "up", show=False, id="log.up", tooltip="previous line"),
        Binding("pagedown,space,ctrl+f", "page(1)", "page down", show=False, id="log.page_down"),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False, id="log.page_up"),
        Binding("ctrl+d", "page(0.5)", "half a page down", show=False, id="log.half_down"),
        Binding("ctrl+u", "page(-0.5)", "half a page up", show=False, id="log.half_up"),
        Binding("g,home", "begin", "first", show=False, id="log.begin", tooltip="first line"),
        Binding("left,h", "sideways(-1)", "left", show=False, id="log.left", tooltip="scroll to the left"),
        Binding("right,l", "sideways(1)", "right", show=False, id="log.right", tooltip="scroll to the right"),
        Binding("w", "wrap", "wrap", show=False, id="log.wrap", tooltip="wrap or scroll long lines"),
        Binding("v", "mark", "range", show=False, id="log.range", tooltip="start or end a range"),
    ]

    class Moved(Message):
        """The visible lines, the cursor, or whether the log is followed have changed."""

    def __init__(self, progress: SearchProgress) -> None:
        super().__init__()
        self.view = LogViewState()
        self.nothing = ""
        """The text shown if there are no lines."""
        self.contents = Contents(progress, self._height_at)
        self._base = Style()
        self._styles: dict[str, Style] = {}
        self._inks: dict[str, Style] = {}
        self._labels: list[Style] = []
        self._marking = MARKING
        self._unmarked: Pattern | None = None
        self._page: list[tuple[int, int]] = []
        self._drawn: object = None
        self._cursor = 0
        self._height = 0
        self._chosen = range(0)
        self._thumbs = range(0)
        self._dragging = ""
        self._pressed_at = 0
        self.steered = 0
        """Number of keys and mouse events that have moved the cursor or the lines."""

    @property
    def progress(self) -> SearchProgress:
        """The newest report of the engine."""
        return self.contents.progress

    @property
    def lines(self) -> Lines:
        """The lines to show."""
        return self.contents.lines

    def blame(self, blame: Blame, failing: frozenset[int]) -> None:
        """Mark the lines of culprits and victims, and the lines where culprits failed."""
        contents = self.contents
        if (blame, failing) != (contents.blame, contents.failing):
            contents.blame, contents.failing = blame, failing
            self.refresh()

    def show_until(self, time: float) -> None:
        """Hide lines from after a unix time (s)."""
        changed, self.contents.until = time != self.contents.until, time
        self.take(self.progress)
        if changed:
            self.post_message(self.Moved())

    def take(self, progress: SearchProgress) -> None:
        """Show a report of the engine."""
        self.contents.take(progress)
        # While paused, nothing on the screen changes, so nothing is sent to the terminal.
        if self._looks() != self._drawn:
            self.refresh()

    def show(self, view: LogViewState) -> None:
        if view != self.view:
            self.view = view
            self.refresh()
            self.post_message(self.Moved())

    def _steer(self, view: LogViewState) -> None:
        """Show a view that a key or the mouse requests."""
        self.steered += 1
        self.show(view)

    def shown_places(self) -> list[int]:
        """The places of all lines on the screen, without the unfinished ones."""
        rows = dict.fromkeys(row for row, _ in page(self.view, self.lines, self.size.height))
        return [place for row in rows if (place := self.lines.place(row)) < TAIL]

    def chosen_places(self) -> list[int]:
        """The places of the range, or of the cursor's line, without the unfinished ones."""
        return [place for row in chosen(self.paused(), self.lines) if (place := self.lines.place(row)) < TAIL]

    def paused(self) -> LogViewState:
        """The view, paused at the lines shown now."""
        return pause(self.view, self.lines, self.size.height, self.progress.total)

    @property
    def cursor_seen(self) -> bool:
        """Whether the cursor's line is on the screen and must stay there."""
        return not self.view.following and on_screen(self.view, self.lines, self.size.height)

    def keep_cursor(self) -> None:
        """Bring the cursor's line back onto the screen."""
        self.show(go(self.view, self.lines, self.size.height, self.view.cursor, middle=True))

    @property
    def at_first(self) -> bool:
        """Whether the first line is on the screen."""
        return page(self.view, self.lines, self.size.height)[:1] == [(0, 0)]

    @property
    def cursor_y(self) -> int | None:
        """The screen row where the cursor's line begins; None if it is not shown."""
        cursor = self.lines.row(self.view.cursor)
        rows = [row for row, _ in page(self.view, self.lines, self.size.height)]
        return rows.index(cursor) if self.lines and cursor in rows else None

    def put_cursor(self, y: int) -> None:
        """Scroll until the cursor's line begins at a screen row."""
        row, skip = self.lines.walk(self.lines.row(self.view.cursor), 0, -y)
        self.show(replace(self.view, top=self.lines.place(row), skip=skip))

    def jump(self, place: int) -> None:
        """Put the cursor on a place in the order, in the middle of the screen if possible."""
        if self.contents.upto < TAIL:
            place = max(0, min(place, self.contents.upto - 1))
        self.show(go(self.paused(), self.lines, self.size.height, place, middle=True))

    # Drawing

    def render_lines(self, crop: Region) -> list[Strip]:
        """Compute the visible rows once for all lines."""
        self._page = page(self.view, self.lines, self.size.height)
        self._thumbs = self._thumb(self._page)
        self._drawn = self._looks()
        if self.rich_style != self._base:
            self._forget_styles()
            self._base = self.rich_style
        self._marking = MARKING
        here = self.paused()
        self._cursor = self.lines.row(here.cursor)
        self._chosen = range(0) if here.mark is None else chosen(here, self.lines)
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if not self.lines:
            style = self._base + self._ink("empty")
            words = self._said_of_nothing() if y == min(1, self.size.height - 1) else ""
            return Strip([Segment(f"  {words}", style)]).adjust_cell_length(width, style)
        thumb = y in self._thumbs
        bar = Segment("┃" if thumb else " ", self._base + self._ink("thumb" if thumb else "bar"))
        if y >= len(self._page):
            return Strip([Segment(" " * (width - 1), self._base), bar])
        return Strip([*self._row(*self._page[y]), bar], width)

    def _row(self, row: int, part: int) -> list[Segment]:
        """One screen row, without its bar."""
        base, cursor, ranged = self._base, row == self._cursor, row in self._chosen
        if cursor or ranged:
            base += Style(bgcolor=self._style("cursor" if cursor else "range").bgcolor)
        place = self.lines.place(row)
        if not part and self.contents.fails_at(place):
            sign = Segment("▶", self._ink(self.contents.role(place)))
        else:
            sign = Segment("▌" if cursor else "┃" if ranged else " ", self._ink("gutter"))
        segments = [sign, *self._prefix(row, part), *self._text(place, part)]
        return list(Segment.apply_style(segments, base))

    def _text(self, place: int, part: int) -> list[Segment]:
        line = self.contents.line(place)
        marks = [*self._marks(self.view.find, line.text), *self._level(line)]
        if self.view.wrap:
            return line.wrapped(part, self.text_width, marks)
        return line.scrolled(self.view.x, self.text_width, marks)

    def _marks(self, find: Pattern | None, text: str) -> list[tuple[int, int, Style]]:
        if find is None or find is self._unmarked:
            return []
        begun = thread_time()
        try:
            spans = find.spans(text, max(0.001, self._marking))
        except TimeoutError:
            self._unmarked = find
            return []
        self._marking -= thread_time() - begun
        style = self._style("match")
        return [(begin, end, style) for begin, end in spans]

    def _level(self, line: PaintedLine) -> list[tuple[int, int, Style]]:
        """The mark of a line's level, in its colour, unless the line has its own colours."""
        if any(style for _, style in line.runs) or (found := _LEVEL.search(line.text[:_HEAD])) is None:
            return []
        return [(*found.span(), self._ink(str(found.lastgroup)))]

    def _prefix(self, row: int, part: int) -> list[Segment]:
        """The host and rank of a line, and the number of lines that a folded row represents."""
        contents, width = self.contents, self._prefix_width
        if not width:
            return []
        lines = contents.lines
        count = lines.rows.count(row) if contents.choice.fold and row < lines.count else 1
        place = lines.place(row)
        source, role = contents.source(place), contents.role(place)
        label = "" if part else source.label
        if len(label) > width - 3 - self._count_width:
            label = "…" + label[-(width - 4 - self._count_width) :]
        self._labels = self._labels or [
            Style(color=colour.rich_color) for colour in label_colours(self.app.theme_variables)
        ]
        node = self._ink(role) if role else self._labels[source.node % len(self._labels)]
        mark = look(role).glyph if role in ("failed", "blocking") and not part else " "
        times = f" ×{count}" if count > 1 and not part else ""
        return [
            Segment(label.ljust(width - 3 - self._count_width), node),
            Segment(times.ljust(self._count_width), self._ink("count")),
            Segment(f"{mark}│ ", self._ink("bar") if mark == " " else node),
        ]

    @property
    def _count_width(self) -> int:
        return 1 + len(f"×{len(self.contents.progress.work.log.sources)}") if self.contents.choice.fold else 0

    @property
    def _prefix_width(self) -> int:
        if not self.contents.prefixed:
            return 0
        return min(self.contents.label_width, max(4, self.size.width // 4)) + self._count_width + 3

    def _style(self, part: str) -> Style:
        """A part's colours, blended with its background."""
        if part not in self._styles:
            self._styles[part] = self.get_component_rich_style(f"log-lines--{part}")
        return self._styles[part]

    def _ink(self, part: str) -> Style:
        if part not in self._inks:
            style = self._style(part)
            self._inks[part] = Style(color=style.color, bold=style.bold)
        return self._inks[part]

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._forget_styles()

    def _forget_styles(self) -> None:
        # Cached, because Textual recomputes them after every refresh, which takes longer than drawing lines.
        self._styles.clear()
        self._inks.clear()
        self._labels.clear()

    def _said_of_nothing(self) -> str:
        if not self.progress.complete:
            return ""  # there may be lines
        filtered = self.contents.choice.patterns and self.progress.total
        return "No matches; esc clears the filter." if filtered else self.nothing

    def _looks(self) -> object:
        """Everything besides the view that determines the drawing; if it changes, a redraw is needed."""
        lines = self.lines
        rows = page(self.view, lines, self.size.height)
        places = tuple((lines.place(row), part, lines.rows.count(row)) for row, part in rows)
        tails = self.progress.tails if rows and rows[-1][0] >= lines.count else ()
        attempt = self.progress.work.log.attempt
        said = "" if rows else self._said_of_nothing()
        return attempt, self.contents.choice, self.contents.prefixed, places, tails, self._thumb(rows), said

    def _thumb(self, rows: list[tuple[int, int]]) -> range:
        """The rows of the scroll bar's thumb; empty if all lines are visible."""
        height, total = self.size.height, len(self.lines)
        if not rows or rows[-1][0] - rows[0][0] + 1 >= total:
            return range(0)
        low = rows[0][0] * height // total
        return range(low, max(low + 1, -(-(rows[-1][0] + 1) * height // total)))

    @property
    def text_width(self) -> int:
        """Cells for the text of a line."""
        return max(2, self.size.width - 2 - self._prefix_width)

    def _height_at(self, place: int) -> int:
        return self.contents.line(place).height(self.text_width) if self.view.wrap else 1

    # Actions

    def action_follow(self) -> None:
        """Show the end, and keep showing it."""
        self._steer(follow(self.view))

    def action_move(self, by: int) -> None:
        """Move the cursor; while following, it is at the end and cannot move down."""
        if not (self.view.following and by > 0):
            self._steer(move(self.paused(), self.lines, self.size.height, by))

    def action_page(self, pages: float) -> None:
        if not (self.view.following and pages > 0):
            by = int(pages * max(1, self.size.height - 1))
            view = scroll(self.paused(), self.lines, self.size.height, by)
            self._steer(move(view, self.lines, self.size.height, by))

    def action_begin(self) -> None:
        if self.lines:
            self._steer(go(self.paused(), self.lines, self.size.height, self.lines.place(0)))

    def action_sideways(self, by: int) -> None:
        if not self.view.wrap:
            widest = max((self.contents.line(self.lines.place(row)).cells for row, _ in self._page), default=0)
            most = max(0, widest - self.text_width)
            self.show(replace(self.view, x=max(0, min(self.view.x + by * SIDEWAYS, max(most, self.view.x)))))

    def action_wrap(self) -> None:
        """Toggle between wrapping and scrolling long lines; a visible cursor stays visible."""
        seen = self.cursor_seen
        self.show(replace(self.view, wrap=not self.view.wrap, skip=0, x=0))
        if seen:
            self.keep_cursor()

    def on_resize(self) -> None:
        """Keep the cursor's line visible on a smaller screen."""
        before, self._height = self._height, self.size.height
        if not self.view.following and on_screen(self.view, self.lines, before):
            self.keep_cursor()

    def action_mark(self) -> None:
        """Begin a range at the cursor, or remove the range."""
        view = self.paused()
        self.show(replace(view, mark=view.cursor if view.mark is None else None))

    # Mouse

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        if not self.view.following:
            self._steer(scroll(self.view, self.lines, self.size.height, WHEEL))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        if len(self._page) < self.size.height:
            return
        self._steer(scroll(self.paused(), self.lines, self.size.height, -WHEEL))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Put the cursor on a line, where a range may begin, or start dragging the scroll bar."""
        if event.button != 1 or not self.lines:
            return
        self.capture_mouse()
        self._dragging = "bar" if event.x >= self.size.width - 1 else "lines"
        if self._dragging == "lines":
            self._steer(replace(self._at(event.y), mark=None))
        self.on_mouse_move(event)

    def on_mouse_move(self, event: events.MouseEvent) -> None:
        """Extend the range, or scroll with the bar."""
        if self._dragging == "bar":
            row = max(0, min(event.y * len(self.lines) // max(1, self.size.height), len(self.lines) - 1))
            self.steered += 1
            self.jump(self.lines.place(row))
        elif self._dragging and (event.y != self._pressed_at or self.view.mark is not None):
            self._drag(event.y)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self._dragging = ""
        self.release_mouse()

    def _at(self, y: int) -> LogViewState:
        self._pressed_at = y
        row = self._page[max(0, min(y, len(self._page) - 1))][0]
        return replace(self.paused(), cursor=self.lines.place(row))

    def _drag(self, y: int) -> None:
        view = self.view
        mark = view.cursor if view.mark is None else view.mark
        if not 0 <= y < self.size.height:
            view = scroll(view, self.lines, self.size.height, y if y < 0 else y - self.size.height + 1)
        shown = page(view, self.lines, self.size.height)
        if not shown:  # a replay has reached an attempt without lines
            return
        row = shown[max(0, min(y, len(shown) - 1))][0]
        self.show(replace(view, mark=mark, cursor=self.lines.place(row)))
