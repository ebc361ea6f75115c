"""Keys typed at once, and one widget alone in an app with what it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from textual import events
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

from disttui.tui import theme
from disttui.tui.run.feed import Snapshot
from tests.tui.snap import screen_text

_CHARACTERS = {"slash": "/", "ampersand": "&", "space": " ", "enter": "\r", "escape": None, "tab": "\t"}


def burst(app: App[None], *keys: str) -> None:
    """All keys at once: none is waited for."""
    for key in keys:
        app.post_message(events.Key(key, _CHARACTERS.get(key, key)))


class Alone(App[None]):
    """The widget, in our colours."""

    CSS_PATH = "../../tui/disttui.tcss"

    def __init__(self, widget: Widget) -> None:
        super().__init__()
        self._widget = widget
        for ours in theme.THEMES:
            self.register_theme(ours)
        self.theme = theme.DARK

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our colours."""
        return theme.DEFAULTS

    def compose(self) -> ComposeResult:
        """The widget as a pane."""
        self._widget.add_class("pane")
        yield self._widget


@asynccontextmanager
async def text_of(
    widget: Widget, size: tuple[int, int], shown: Snapshot | None = None
) -> AsyncIterator[tuple[Pilot[None], Callable[[], str]]]:
    """Run the widget with the focus on it, and what it is to show; gives the pilot and the text on the screen."""
    app = Alone(widget)
    async with app.run_test(size=size) as pilot:
        widget.focus()
        await pilot.pause()
        if shown is not None:
            cast(Any, widget).show(shown)
            await pilot.pause()
        yield pilot, lambda: screen_text(app)
