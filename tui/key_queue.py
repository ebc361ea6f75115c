"""Keys one after another: what is typed ahead goes to whatever has the focus when all before it has been obeyed.

Textual hands every key to the widget that has the focus when it arrives; the bindings are looked up later, when the
key has bubbled up to the app. Over a slow link, or in a paste, many keys arrive at once: those behind `/` would go to
the list that had the focus, not to the field that `/` opens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from textual import events
from textual.app import App
from textual.message import Message

ROUNDS = 3
"""Ways from the focused widget up to the app that are gone after a key: it may lead to a message, that to another."""
PATIENCE = 0.5
"""Seconds after which a key counts as obeyed whose widget has gone, or works on."""
HOLD = 3.0
"""Seconds that keys wait for a screen at most: a disk that hangs keeps nobody from leaving."""

Typed = events.Key | events.Paste


class KeyQueue:
    """Lets a key wait until the one before it has been obeyed. The app hands it what is typed, and `Passed`.

    Args:
        app: Whose keys these are.
        obey: What the app does with an event without this queue.
        ignores: Whether a key is obeyed by nobody.
    """

    class Passed(Message):
        """Follows a key up through all widgets; where it has arrived, the key has been."""

        def __init__(self, turn: int, rounds: int) -> None:
            super().__init__()
            self.turn = turn
            self.rounds = rounds

    def __init__(
        self,
        app: App[None],
        obey: Callable[[events.Event], Awaitable[None]],
        ignores: Callable[[Typed], bool] = lambda _: False,
    ) -> None:
        self._app = app
        self._obey = obey
        self._ignores = ignores
        self._ahead: deque[Typed] = deque()
        self._holds: set[object] = set()
        self._turn = 0
        self._obeying = False
        self._release: asyncio.TimerHandle | None = None
        self.typed_at = 0.0
        """When the key was typed that is being obeyed (monotonic clock, s): it may have waited for others since."""

    async def take(self, event: Typed) -> None:
        """Obey what is typed in its turn."""
        self._ahead.append(event)
        await self._next()

    async def passed(self, message: Passed) -> None:
        """Go the next round, or take the next key."""
        if message.turn != self._turn:
            return
        if message.rounds > 1:
            self._follow(message.rounds - 1)
            return
        if self._release is not None:
            self._release.cancel()
        self._obeying = False
        await self._next()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Let keys wait while the block runs: what is typed ahead is for the screen that is being opened."""
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
        if not self._holds and not self._obeying:
            self._app.post_message(self.Passed(self._turn, rounds=1))

    async def _next(self) -> None:
        """Obey what comes first, where nothing is in the way."""
        while self._ahead and not self._obeying and not self._holds:
            event = self._ahead.popleft()
            if not self._ignores(event):
                await self._begin(event)

    async def _begin(self, event: Typed) -> None:
        self._obeying = True
        self.typed_at = event.time
        self._turn += 1
        await self._obey(event)
        self._release = asyncio.get_running_loop().call_later(
            PATIENCE, self._app.post_message, self.Passed(self._turn, rounds=1)
        )
        self._follow(ROUNDS)

    def _follow(self, rounds: int) -> None:
        """Behind whatever the widget has still to do, and what it has told others."""
        passed = self.Passed(self._turn, rounds)
        if not (self._app.focused or self._app.screen).post_message(passed):
            self._app.post_message(passed)
