"""Keys one after another: what is typed ahead goes to whatever has the focus when all before it has been obeyed.

Textual hands every key to the widget that has the focus when it arrives; the bindings are looked up later, when the
key has bubbled up to the app. Over a slow link, or in a paste, many keys arrive at once: those behind `/` would go to
the list that had the focus, not to the field that `/` opens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
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


class KeysInTurn(App[None]):
    """The part of the app that lets a key wait until the one before it has been obeyed."""

    class Passed(Message):
        """Follows a key up through all widgets; where it has arrived, the key has been."""

        def __init__(self, turn: int, rounds: int) -> None:
            super().__init__()
            self.turn = turn
            self.rounds = rounds

    typed_at = 0.0
    """When the key was typed that is being obeyed (monotonic clock, s): it may have waited for others since."""
    _turn = 0
    _obeying = False
    _release: asyncio.TimerHandle | None = None

    def __init__(self) -> None:
        super().__init__()
        self._ahead: deque[events.Key | events.Paste] = deque()
        self._holds: set[object] = set()

    async def on_event(self, event: events.Event) -> None:
        """Take what is typed in turn, everything else at once."""
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
        else:
            self._ahead.append(event)
            await self._next()

    def ignores(self, event: events.Key | events.Paste) -> bool:
        """Whether a key is obeyed by nobody."""
        return False

    async def _next(self) -> None:
        """Obey what comes first, where nothing is in the way."""
        while self._ahead and not self._obeying and not self._holds:
            event = self._ahead.popleft()
            if not self.ignores(event):
                await self._obey(event)

    async def on_keys_in_turn_passed(self, message: Passed) -> None:
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
    async def keys_held(self) -> AsyncIterator[None]:
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
            self.post_message(self.Passed(self._turn, rounds=1))

    async def _obey(self, event: events.Key | events.Paste) -> None:
        self._obeying = True
        self.typed_at = event.time
        self._turn += 1
        await super().on_event(event)
        self._release = asyncio.get_running_loop().call_later(
            PATIENCE, self.post_message, self.Passed(self._turn, rounds=1)
        )
        self._follow(ROUNDS)

    def _follow(self, rounds: int) -> None:
        """Behind whatever the widget has still to do, and what it has told others."""
        passed = self.Passed(self._turn, rounds)
        if not (self.focused or self.screen).post_message(passed):
            self.post_message(passed)
