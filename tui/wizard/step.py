"""What the five steps have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.message import Message

from runner.errors import DisttuiError
from runner.text import clean
from tui.widgets.points import Pages, Point
from tui.wizard.draft import Draft, HostCheck, WizardState

_ADDRESS = re.compile(r"^\S*(?:\d+\.){3}\d+\]?(?::\d+)?\s|^\S+:\d+\s")
"""The address that begins the words of what keeps a host from being reached."""


class Step(Vertical):
    """One step. It shows a `WizardState`, and posts `Changed` when somebody has changed the draft."""

    TITLE: ClassVar[str] = ""
    DEFAULT_CSS = """
    Step { display: none; height: 1fr; }
    Step.-current { display: block; }
    """

    class Changed(Message):
        """Somebody has changed the draft."""

        def __init__(self, draft: Draft) -> None:
            super().__init__()
            self.draft = draft

    class GoOn(Message):
        """Somebody wants the next step."""

    def __init__(self) -> None:
        super().__init__(id=f"step-{type(self).__name__.lower()}")
        self.view: WizardState | None = None

    @property
    def draft(self) -> Draft:
        """The draft as last shown."""
        assert self.view is not None
        return self.view.draft

    def show(self, view: WizardState) -> None:
        """Show this; called again whenever anything has changed."""
        self.view = view

    def enter(self) -> None:
        """Put the focus where one begins."""

    def leave(self) -> str:
        """Why one cannot go on yet; empty where nothing is in the way."""
        return ""


class StepNotes(Pages):
    """Points about whatever has the cursor, under a rule. Where they are longer than the room, they take the focus."""

    DEFAULT_CSS = """
    StepNotes { height: 1fr; padding: 0 1; border-top: solid $rule; color: $muted;
            border-title-color: $foreground; border-title-style: none; }
    StepNotes:focus { border-top: solid $accent; border-title-color: $accent; border-title-style: bold; }
    """

    def allow_focus(self) -> bool:
        """Only what can be scrolled."""
        return self.max_scroll_y > 0

    def tell(self, title: str, *points: Point | str) -> None:
        """Show other points; they are cleaned, and never taken as markup."""
        self.border_title = Content(f" {clean(title)} ") if title else ""
        told = [point if isinstance(point, Point) else Point(point) for point in points]
        self.show(point._replace(text=clean(str(point.text)), mark=clean(point.mark)) for point in told)


def count(number: int, word: str) -> str:
    """`1 host`, `2 hosts`, `2 processes`."""
    return f"{number} {word}" + ("" if number == 1 else "es" if word.endswith("s") else "s")


def folded(states: Iterable[HostCheck]) -> Iterator[Point]:
    """What keeps hosts from being used: each trouble once, with its hosts, the commonest first."""
    kinds: dict[str, list[str]] = {}
    for state in states:
        if state.error:
            kinds.setdefault(_kind(state.error.reason), []).append(state.name)
    for what, names in sorted(kinds.items(), key=lambda one: -len(one[1])):
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        yield Point(f"{', '.join(names[:6])}{more}: {what}", "$state-failed", f"✗ {len(names)} ")


def _kind(what: str) -> str:
    """A trouble's first line without the address, which differs between hosts that have the same one."""
    line = (what.splitlines() or [""])[0]
    return _ADDRESS.sub("", line).partition(": ")[0]


def trouble(error: DisttuiError) -> Iterator[Point]:
    """What is wrong, and what helps."""
    first, *rest = error.sentence.splitlines()[:6] or [""]
    yield Point(first, "$state-failed", "✗ ")
    yield from (Point(line, "$state-failed", "  ") for line in rest)
    if error.cure:
        yield Point(error.cure, mark="→ ")
