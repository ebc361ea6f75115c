"""A line of steps: which are done, which one is open."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget


class Rail(Widget):
    """Numbered steps: the open one bold, the finished ones marked. A click opens a step."""

    DEFAULT_CSS = """
    Rail { height: 1; padding: 0 1; color: $muted; text-wrap: nowrap; pointer: pointer; }
    """
    ALLOW_SELECT = False

    class Chosen(Message):
        """A step was clicked."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self, titles: Sequence[str]) -> None:
        super().__init__()
        self._titles = titles
        self._at = 0
        self._reached = 0
        self._places: list[tuple[int, int]] = []

    def go(self, step: int) -> None:
        """Open a step."""
        self._at, self._reached = step, max(step, self._reached)
        self.refresh()

    def render(self) -> Content:
        """Draw all titles if they fit, else only the open step's."""
        whole = sum(len(title) + 7 for title in self._titles) <= self.size.width + 5
        parts: list[str | tuple[str, str]] = []
        self._places, at = [], 0
        for number, title in enumerate(self._titles):
            here = number == self._at
            mark = "✓" if number < self._reached and not here else f"{number + 1}"
            text = f"{mark} {title}" if whole or here else mark
            style = "bold $accent" if here else "$state-done" if number < self._reached else "$muted"
            self._places.append((at, at + len(text)))
            gap = "" if number == len(self._titles) - 1 else " ─── " if whole else " ─ "
            parts += [(text, style), (gap, "$rule")]
            at += len(text) + len(gap)
        return Content.assemble(*parts)

    def on_click(self, event: events.Click) -> None:
        """Go to the step under the pointer."""
        offset = event.get_content_offset(self)
        for number, (start, end) in enumerate(self._places):
            if offset is not None and start <= offset.x < end:
                self.post_message(self.Chosen(number))
