"""A queue of keys and clicks: each is handled after all earlier ones, by the widget that then has the focus.

Textual passes every key to the widget that has the focus when the key arrives; it looks the bindings up later, when
the key has bubbled up to the app. Over a slow link, or in a paste, many keys arrive together: those after `/` would go
to the list that had the focus, not to the field that `/` opens. A click would overtake all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from textual import events
from textual.app import App
from textual.errors import NoWidget
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

ROUNDS = 3
"""How often `Passed` bubbles from the focused widget to the app after a key, because handling it may post messages."""
PATIENCE = 0.5
"""Seconds after which a key counts as handled, even if its widget is gone or still busy."""
HOLD = 3.0
"""Maximum seconds for which keys wait for a screen to open: a hanging disk must not keep the user from leaving."""

Typed = events.Key | events.Paste | events.MouseDown | events.MouseUp
"""Events that can answer a question."""
_Input = events.InputEvent | events.Paste


class KeyQueue:
    """Delays each key or click until the previous one has been handled. The app passes all input and `Passed` to it.

    Args:
        app: The app whose input it queues.
        handle: Handles an event as the app would without this queue.
        ignores: Whether to drop a key or a click.
    """

    class Passed(Message):
        """Bubbles through the widgets after a key: when it reaches the app, the key has passed them."""

        def __init__(self, turn: int, rounds: int) -> None:
            super().__init__()
            self.turn = turn
            self.rounds = rounds

    def __init__(
        self,
        app: App[None],
        handle: Callable[[events.Event], Awaitable[None]],
        ignores: Callable[[Typed], bool] = lambda _: False,
    ) -> None:
        self._app = app
        self._handle = handle
        self._ignores = ignores
        self._ahead: deque[tuple[_Input, list[Screen[Any]]]] = deque()
        """Waiting events, each with the screen that was shown when it arrived."""
        self._holds: set[object] = set()
        self._turn = 0
        self._handling = False
        self._clicked: Widget | None = None
        """The widget whose click is being handled."""
        self._release: asyncio.TimerHandle | None = None
        self.typed_at = 0.0
        """When the key that is now being handled was typed (monotonic clock, s); it may have waited in the queue."""

    async def take(self, event: _Input) -> None:
        """Queue an event, and handle it when no other is before it."""
        self._ahead.append((event, self._app.screen_stack[-1:]))
        await self._next()

    def press(self, key: str) -> None:
        """Handle the key whose label was clicked, before everything typed after that click."""
        pressed = events.Key(key, None)
        if self._handling:
            pressed.time = self.typed_at
        self._ahead.appendleft((pressed, []))
        if not self._handling:
            self._app.post_message(self.Passed(self._turn, rounds=1))

    async def passed(self, message: Passed) -> None:
        """Start the next round, or handle the next key."""
        if message.turn != self._turn:
            return
        if message.rounds > 1:
            self._follow(message.rounds - 1)
            return
        if self._release is not None:
            self._release.cancel()
        self._handling = False
        await self._next()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold keys back while the block runs: they belong to the screen that is being opened."""
        hold = object()
        self._holds.add(hold)
        timer = asyncio.get_running_loop().call_later(HOLD, self._let_go, hold)
        try:
            yield
        finally:
            timer.cancel()
            self._let_go(hold)

    def _let_go(self, hold: object) -> None:
        self._holds.discard(hold)
        if not self._holds and not self._handling:
            self._app.post_message(self.Passed(self._turn, rounds=1))

    async def _next(self) -> None:
        """Handle the first key, unless one is being handled or keys are held."""
        while self._ahead and not self._handling and not self._holds:
            event, screen = self._ahead.popleft()
            if isinstance(event, events.MouseEvent) and screen != self._app.screen_stack[-1:]:
                continue  # it pointed at a screen that is gone
            if isinstance(event, events.MouseDown | events.MouseMove) and self._is_removed(event):
                continue
            if isinstance(event, Typed) and self._ignores(event):
                continue
            if isinstance(event, events.Key | events.Paste | events.MouseUp):
                await self._begin(event)
            else:
                await self._handle(event)

    def _is_removed(self, event: events.MouseEvent) -> bool:
        """Whether a mouse points at a removed widget that is still drawn, whose parent Textual relies on."""
        with suppress(NoWidget):
            widget, _ = self._app.get_widget_at(event.x, event.y)
            return widget.parent is None
        return False

    async def _begin(self, event: events.Key | events.Paste | events.MouseUp) -> None:
        self._handling = True
        self.typed_at = event.time
        self._turn += 1
        self._clicked = None
        if isinstance(event, events.MouseUp):
            with suppress(NoWidget):
                self._clicked, _ = self._app.get_widget_at(event.x, event.y)
        await self._handle(event)
        self._release = asyncio.get_running_loop().call_later(
            PATIENCE, self._app.post_message, self.Passed(self._turn, rounds=1)
        )
        self._follow(ROUNDS)

    def _follow(self, rounds: int) -> None:
        """Post `Passed` after the messages that wait for the widget and those that it has posted."""
        passed = self.Passed(self._turn, rounds)
        if not (self._clicked or self._app.focused or self._app.screen).post_message(passed):
            self._app.post_message(passed)
