"""Single-line widgets to choose from tabs, steps or words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from disttui.tui.keys import VIEW, bind
from disttui.tui.widgets.drawn import clicked, part

_MORE = re.compile(": | · ")
"""Separates the name of a pane from its details."""


class Tabs(Widget):
    """Tabs such as `[1] Runs · 6   [2] Profiles   [3] Hosts`; a click on a label posts `Chosen`."""

    DEFAULT_CSS = "Tabs { height: 1; padding: 0 1; text-wrap: nowrap; pointer: pointer; }"
    ALLOW_SELECT = False
    GAP = 3

    class Chosen(Message):
        """The label of a pane was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self) -> None:
        super().__init__(id="tabs")
        self._panes: list[tuple[str, str, bool]] = []

    def show(self, panes: Sequence[tuple[str, str, bool]]) -> None:
        """Show every pane, given as (name, label, whether it is the current one)."""
        if self._panes != list(panes):
            self._panes = list(panes)
            self.refresh()

    def render(self) -> Content:
        """Draw the labels, with the current pane's bold."""
        labels, gap = self._fitting()
        return Content(" " * gap).join(
            part(Content.styled(label, "bold $accent" if here else "$muted"), name)
            for label, (name, _, here) in zip(labels, self._panes, strict=True)
        )

    def _fitting(self) -> tuple[list[str], int]:
        """The labels that fit and the cells between them; the current pane's label is shortened last."""
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
        if (name := clicked(event)) is not None:
            self.post_message(self.Chosen(name))


class Rail(Widget):
    """Numbered steps: the open one is bold, finished ones are marked. A click on a step posts `Chosen`."""

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

    def go(self, step: int) -> None:
        self._at, self._reached = step, max(step, self._reached)
        self.refresh()

    def render(self) -> Content:
        """Draw all titles if they fit, or else only the open step's."""
        whole = sum(len(title) + 7 for title in self._titles) <= self.size.width + 5
        parts: list[Content | tuple[str, str]] = []
        for number, title in enumerate(self._titles):
            here = number == self._at
            mark = "✓" if number < self._reached and not here else f"{number + 1}"
            text = f"{mark} {title}" if whole or here else mark
            style = "bold $accent" if here else "$state-done" if number < self._reached else "$muted"
            gap = "" if number == len(self._titles) - 1 else " ─── " if whole else " ─ "
            parts += [part(Content.styled(text, style), number), (gap, "$rule")]
        return Content.assemble(*parts)

    def on_click(self, event: events.Click) -> None:
        if (number := clicked(event)) is not None:
            self.post_message(self.Chosen(number))


MORE = "… "
"""Stands for the words before the visible ones."""


class Cycle(Widget, can_focus=True):
    """Shows the chosen word; left and right choose another."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("cycle.next", "right,space,l", "choose(1)", "next choice", group=VIEW),
        bind("cycle.previous", "left,h", "choose(-1)", "previous choice", group=VIEW, show=False),
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

    def __init__(self, choices: Sequence[str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._choices = list(choices)
        self.value = self._choices[0]

    def show(self, value: str) -> None:
        """Show `value` as the chosen word."""
        if value != self.value:
            self.value = value
            self.refresh()

    def render(self) -> Content:
        """Draw the words, with the chosen one bold; if not all fit, draw those around it."""
        first = self._first
        more = part(Content.styled(MORE.rstrip(), "$muted"), self._choices[first - 1])
        parts: list[Content | str | tuple[str, str]] = [" ", more] if first else []
        for word in self._choices[first:]:
            chosen = word == self.value
            mark = "›" if chosen and self.has_focus else " "
            shown = Content.styled(f" {word} ", "bold $accent" if chosen else "$muted")
            parts += [(mark, "$accent"), part(shown, word)]
        return Content.assemble(*parts)

    @property
    def _first(self) -> int:
        """Index of the first word drawn, so that the chosen one fits, and the ellipsis of the words before it."""
        upto = self._choices.index(self.value) + 1 if self.value in self._choices else 1
        first, room = 0, self.size.width
        while first < upto - 1 and sum(cell_len(word) + 3 for word in self._choices[first:upto]) >= room:
            first, room = first + 1, self.size.width - len(MORE)
        return first

    def on_click(self, event: events.Click) -> None:
        """Choose the option under the pointer, or the last one that the ellipsis hides."""
        word = clicked(event)
        if word not in (None, self.value):
            self._choose(word)

    def action_choose(self, by: int) -> None:
        at = self._choices.index(self.value) if self.value in self._choices else 0
        self._choose(self._choices[(at + by) % len(self._choices)])

    def _choose(self, word: str) -> None:
        self.value = word
        self.refresh()
        self.post_message(self.Changed(self, self.value))
