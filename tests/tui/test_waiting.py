"""What a pause of these tests waits for: whatever a key has set going, on the event loop and in threads."""

from __future__ import annotations

import hashlib

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Label

from tests.tui.snap import press, screen_text

CALLS = 50


class _Works(App[None]):
    """Shows a word when the work that a key has begun is done."""

    def compose(self) -> ComposeResult:
        yield Label("begin")

    def key_c(self) -> None:
        self._calls(CALLS)

    def _calls(self, left: int) -> None:
        if left:
            self.call_later(self._calls, left - 1)
        else:
            self._show("calls")

    def key_r(self) -> None:
        self.call_after_refresh(lambda: self.call_after_refresh(self._show, "refreshes"))
        self.refresh()

    def key_t(self) -> None:
        self.run_worker(self._compute, thread=True)

    def _compute(self) -> None:
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 300_000)
        self.call_from_thread(self._show, "thread")

    def _show(self, word: str) -> None:
        self.query_one(Label).update(word)


@pytest.mark.parametrize(("key", "word"), [("c", "calls"), ("r", "refreshes"), ("t", "thread")])
async def test_a_pause_ends_after_what_a_key_has_set_going(key: str, word: str) -> None:
    app = _Works()
    async with app.run_test(size=(40, 3)) as pilot:
        await press(pilot, key)
        assert word in screen_text(app)
