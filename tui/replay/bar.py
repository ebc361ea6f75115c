"""The cursor in time of a replay."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.message import Message
from textual.strip import Strip

from runner.formatting import duration
from tui.run.feed import Snapshot
from tui.theme import look
from tui.widgets.drawn import Drawn, Piece, cells, line


class ReplayBar(Drawn):
    """`▶ playing ×10  0:50 ━━━━●──✗───── 1:49`, with failures marked. A click moves the cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"bar--done", "bar--rest", "bar--quiet"}
    DEFAULT_CSS = """
    ReplayBar {
        height: 1; padding: 0 1; background: $surface;
        & > .bar--done { color: $accent; }
        & > .bar--rest { color: $rule; }
        & > .bar--quiet { color: $muted; }
    }
    """
    MARKED: ClassVar[tuple[str, ...]] = ("failed", "warning", "not seen", "lost", "slow")

    class Sought(Message):
        """Requests the cursor at a time."""

        def __init__(self, time: float) -> None:
            super().__init__()
            self.time = time

    def __init__(self) -> None:
        super().__init__()
        self._snapshot: Snapshot | None = None
        self._marks: tuple[tuple[float, str], ...] = ()
        self._place = (0, 1)

    def mark(self, marks: tuple[tuple[float, str], ...]) -> None:
        """Set the moments of the whole run, as (time, look)."""
        self._marks = tuple((time, word) for time, word in marks if word in self.MARKED)

    def show(self, snapshot: Snapshot) -> None:
        """Show the time of a snapshot."""
        self._snapshot = snapshot
        self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Draw speed, time, bar and length."""
        if self._snapshot is None or self._snapshot.playback is None:
            return []
        play, now = self._snapshot.playback, self._snapshot.now
        length = max(0.001, play.end - play.begin)
        quiet = self.component("bar--quiet")
        total = duration(length)
        state = "▶ playing" if play.playing else "‖ paused "
        left: list[Piece] = [
            f"{state} ",
            (f"×{play.speed:<4g}", quiet),
            f" {duration(now - play.begin):>{len(total)}} ",
        ]
        room = max(4, width - cells(left) - len(total) - 1)
        self._place = (width - room - len(total) - 1, room)
        at = min(room - 1, int((now - play.begin) / length * room))
        done, rest = self.component("bar--done"), self.component("bar--rest")
        bar: list[Piece] = [("━", done) if cell < at else ("─", rest) for cell in range(room)]
        for time, word in self._marks:
            place = max(0, min(room - 1, int((time - play.begin) / length * room)))
            bar[place] = (look(word).glyph, self.component(look(word).css))
        bar[at] = ("●", done)
        return [line([*left, *bar, (f" {total}", quiet)])]

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the pointer."""
        offset = event.get_content_offset(self)
        start, room = self._place
        if offset is not None and self._snapshot and self._snapshot.playback and start <= offset.x < start + room:
            play = self._snapshot.playback
            self.post_message(self.Sought(play.begin + (offset.x - start + 0.5) / room * (play.end - play.begin)))
