"""The base class of the five steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.message import Message

from disttui.runner.errors import DisttuiError
from disttui.runner.text import clean
from disttui.tui.widgets.points import Pages, Point
from disttui.tui.wizard.draft import Draft, HostCheck, WizardState, new_draft

_ADDRESS = re.compile(r"^\S*(?:\d+\.){3}\d+\]?(?::\d+)?\s|^\S+:\d+\s")
"""The address at the start of a connection error."""


class Step(Vertical):
    """A step, which shows a `WizardState`, and posts `Changed` when the user has changed the draft."""

    TITLE: ClassVar[str] = ""
    DEFAULT_CSS = """
    Step { display: none; height: 1fr; }
    Step.-current { display: block; }
    """

    class Changed(Message):
        """The user has changed the draft."""

        def __init__(self, draft: Draft) -> None:
            super().__init__()
            self.draft = draft

    class GoOn(Message):
        """Requests the next step."""

    def __init__(self) -> None:
        super().__init__(id=f"step-{type(self).__name__.lower()}")
        self.view = WizardState(new_draft())
        """The state as last shown."""

    @property
    def draft(self) -> Draft:
        return self.view.draft

    def show(self, view: WizardState) -> None:
        """Show the state; called after each change."""
        self.view = view

    def enter(self) -> None:
        """Focus the first widget of the step."""

    def leave(self) -> str:
        """Return why the step is incomplete; empty if it is complete."""
        return ""


class StepNotes(Pages):
    """Points about the row under the cursor, below a rule; they take the focus only if they need scrolling."""

    PLACE = "the notes"

    DEFAULT_CSS = """
    StepNotes { height: 1fr; padding: 0 1; border-top: solid $rule; color: $muted;
            border-title-color: $foreground; border-title-style: none; }
    StepNotes:focus { border-top: solid $accent; border-title-color: $accent; border-title-style: bold; }
    """

    def allow_focus(self) -> bool:
        """Allow the focus only if there is something to scroll."""
        return self.max_scroll_y > 0

    def tell(self, title: str, *points: Point | str) -> None:
        """Replace the title and the points; they are cleaned, and never parsed as markup."""
        self.border_title = Content(f" {clean(title)} ") if title else ""
        shown = [point if isinstance(point, Point) else Point(point) for point in points]
        self.show(point._replace(text=str(point.text), mark=clean(point.mark)) for point in shown)


def folded(states: Iterable[HostCheck]) -> Iterator[Point]:
    """Yield each kind of error once, with its hosts, the most frequent first."""
    kinds: dict[str, list[str]] = {}
    for state in states:
        if state.error:
            kinds.setdefault(_kind(state.error.reason), []).append(state.name)
    for what, names in sorted(kinds.items(), key=lambda one: -len(one[1])):
        number = f" ({len(names)} hosts)" if len(names) > 1 else ""
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        yield Point(f"{what}{number}: {', '.join(names[:6])}{more}", "$state-failed", "✗ ")


def _kind(what: str) -> str:
    """An error's first line without its address, which differs between hosts with the same error."""
    line = (what.splitlines() or [""])[0]
    return _ADDRESS.sub("", line).partition(": ")[0]


def trouble(error: DisttuiError) -> Iterator[Point]:
    """Yield an error, in at most six lines, and its cure."""
    first, *rest = error.sentence.splitlines()[:6] or [""]
    yield Point(first, "$state-failed", "✗ ")
    yield from (Point(line, "$state-failed", "  ") for line in rest)
    if error.cure:
        yield Point(error.cure, mark="→ ")
