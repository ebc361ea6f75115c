"""The names of panes, where there is room for one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

_MORE = re.compile(": | · ")
"""What separates the name of a pane from what is said about it."""


class Tabs(Widget):
    """`[1] Runs · 6   [2] Profiles   [3] Hosts`; a click on a name shows its pane."""

    DEFAULT_CSS = "Tabs { height: 1; padding: 0 1; text-wrap: nowrap; pointer: pointer; }"
    ALLOW_SELECT = False
    GAP = 3

    class Chosen(Message):
        """A name was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self) -> None:
        super().__init__(id="tabs")
        self._panes: list[tuple[str, str, bool]] = []

    def show(self, panes: Sequence[tuple[str, str, bool]]) -> None:
        """Show (name, label, whether it is shown) of every pane."""
        if self._panes != list(panes):
            self._panes = list(panes)
            self.refresh()

    def render(self) -> Content:
        """Draw the labels, that of the shown pane bold."""
        labels, gap = self._fitting()
        styles = ("bold $accent" if here else "$muted" for _, _, here in self._panes)
        return Content(" " * gap).join(map(Content.styled, labels, styles))

    def _fitting(self) -> tuple[list[str], int]:
        """The labels and the cells between them; the shown pane's is the last to lose words."""
        *forms, shortest = self._forms()
        width = self.content_size.width
        fits = (form for form in forms if sum(map(cell_len, form[0])) + form[1] * (len(form[0]) - 1) <= width)
        return next(fits, shortest)

    def _forms(self) -> Iterator[tuple[list[str], int]]:
        """The labels with the cells between them, from the longest form to the shortest."""
        labels, heres = [label for _, label, _ in self._panes], [here for _, _, here in self._panes]
        names = [_MORE.split(label)[0] for label in labels]
        numbers = [label.partition(" ")[0] for label in labels]
        yield labels, self.GAP
        for short in (names, numbers):
            chosen = zip(labels, short, heres, strict=True)
            yield [label if here else less for label, less, here in chosen], self.GAP - 1
        yield names, self.GAP - 1

    def on_click(self, event: events.Click) -> None:
        """Show the pane under the pointer."""
        offset = event.get_content_offset(self)
        labels, gap = self._fitting()
        at = 0
        for (name, _, _), label in zip(self._panes, labels, strict=True):
            if offset is not None and at <= offset.x < at + cell_len(label):
                self.post_message(self.Chosen(name))
            at += cell_len(label) + gap
