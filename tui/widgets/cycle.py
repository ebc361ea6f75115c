"""A choice between a few words, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from tui.keys import VIEW, bind

MORE = "… "
"""Stands for the words before those in sight."""


class Cycle(Widget, can_focus=True):
    """Shows the chosen word; left and right choose another."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("cycle.next", "right,space,l", "choose(1)", "next choice", group=VIEW),
        bind("cycle.previous", "left,h", "choose(-1)", "choice before", group=VIEW, show=False),
    ]
    DEFAULT_CSS = """
    Cycle { height: 1; width: 1fr; pointer: pointer; text-wrap: nowrap; text-overflow: ellipsis; }
    Cycle:focus { background: $selected; color: $selected-text; }
    """
    ALLOW_SELECT = False

    class Changed(Message):
        """Another word was chosen."""

        def __init__(self, cycle: Cycle, value: str) -> None:
            super().__init__()
            self.cycle, self.value = cycle, value

        @property
        def control(self) -> Cycle:
            """The widget."""
            return self.cycle

    def __init__(self, choices: Sequence[str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._choices = list(choices)
        self.value = self._choices[0]

    def show(self, value: str) -> None:
        """Show what is chosen."""
        if value != self.value:
            self.value = value
            self.refresh()

    def render(self) -> Content:
        """Draw the words, the chosen one bold; where not all have room, those about the chosen one."""
        parts: list[str | tuple[str, str]] = [" ", (MORE.rstrip(), "$muted")] if self._first else []
        for word in self._choices[self._first :]:
            chosen = word == self.value
            mark = "›" if chosen and self.has_focus else " "
            parts += [(mark, "$accent"), (f" {word} ", "bold $accent" if chosen else "$muted")]
        return Content.assemble(*parts)

    @property
    def _first(self) -> int:
        """The first word drawn: the chosen one has room, and the ellipsis behind it."""
        upto = self._choices.index(self.value) + 1 if self.value in self._choices else 1
        first, room = 0, self.size.width
        while first < upto - 1 and sum(cell_len(word) + 3 for word in self._choices[first:upto]) >= room:
            first, room = first + 1, self.size.width - len(MORE)
        return first

    def on_click(self, event: events.Click) -> None:
        """Choose the word under the pointer, the one before those in sight by the sign for it."""
        offset = event.get_content_offset(self)
        first, at = self._first, 1
        if first and offset is not None and at <= offset.x < at + len(MORE):
            self._choose(self._choices[first - 1])
            return
        at += len(MORE) if first else 0
        for word in self._choices[first:]:
            wide = cell_len(word) + 2
            if offset is not None and at <= offset.x < at + wide and word != self.value:
                self._choose(word)
                return
            at += wide + 1

    def action_choose(self, by: int) -> None:
        """Choose another word."""
        at = self._choices.index(self.value) if self.value in self._choices else 0
        self._choose(self._choices[(at + by) % len(self._choices)])

    def _choose(self, word: str) -> None:
        self.value = word
        self.refresh()
        self.post_message(self.Changed(self, self.value))
