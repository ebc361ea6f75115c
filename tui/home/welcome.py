"""What a newcomer can do first."""

from __future__ import annotations

from typing import NamedTuple

from textual import events
from textual.content import Content
from textual.widgets import Static


class WelcomeLine(NamedTuple):
    """A line of the welcome."""

    shown: str
    """The key."""
    does: str
    action: str
    """What the key does, as an action that the screen runs."""


STEPS = (
    WelcomeLine("n", "describe your hosts and job", "new"),
    WelcomeLine("enter", "begin with a profile below", "begin"),
    WelcomeLine("e", "watch a recorded run", "example"),
    WelcomeLine("t", "see what this machine is doing", "top"),
    WelcomeLine("?", "every key, in words", "app.help"),
)


class Welcome(Static):
    """A line for each step; a click on a line takes the step.

    Args:
        steps: The number of steps shown.
        head: A title above them.
    """

    DEFAULT_CSS = "Welcome { pointer: pointer; }"
    ALLOW_SELECT = False

    def __init__(self, steps: int = len(STEPS), *, head: str = "", id: str | None = None) -> None:
        self._steps = STEPS[:steps]
        self._above = 2 if head else 0
        lines = [Content.assemble((f"{step.shown:<7}", "bold $accent"), step.does) for step in self._steps]
        if head:
            lines[:0] = [Content.styled(head, "bold"), Content()]
        super().__init__(Content("\n").join(lines), id=id)

    async def on_click(self, event: events.Click) -> None:
        """Take the step under the pointer."""
        offset = event.get_content_offset(self)
        row = -1 if offset is None else offset.y - self._above
        if 0 <= row < len(self._steps):
            await self.screen.run_action(self._steps[row].action)
