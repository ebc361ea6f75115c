"""What the app changes in its process and inside Textual, each with its measured reason. No other file does.

`import tui` runs this file before Textual is imported. The figures are those of `python -m tests.bench app-keys`: from
a key to the terminal while 64 ranks print 50 lines a second each; as it stands, median 6 ms and 99 % 42 ms.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

# Textual reads this when it is imported. A frame comes one to two periods after the one before: at Textual's 60 Hz, a
# key that follows a line of the log waits for up to 33 ms (99 %: 74 ms).
os.environ.setdefault("TEXTUAL_FPS", "120")

from textual.app import App
from textual.css.query import NoMatches

from tui.terminal import crash

if TYPE_CHECKING:
    from textual.binding import Binding
    from textual.dom import DOMNode

SWITCH = 0.001
"""Seconds that a thread may keep the interpreter from the event loop, which asks for it some ten times per key.

With Python's 5 ms: median 11 ms, 99 % 56 ms.
"""
THREADS = 64
"""Threads for work that waits. Python's default, a few per core, would let slow hosts keep every other one waiting."""


def settle() -> None:
    """Hide from the garbage collector what a screen has built to stay, and let threads hand over sooner.

    A collection looks through every object that it knows, 50 ms for a dashboard, while somebody types. Without this:
    median 15 ms, 99 % 282 ms.
    """
    sys.setswitchinterval(SWITCH)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def unsettle() -> None:
    """Let the collector free what `settle` has hidden: the screen that needed it is gone."""
    gc.unfreeze()


class Threads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`; at the end of the app, the process does not wait for them."""

    def __init__(self) -> None:
        super().__init__(THREADS, "disttui")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


class TextualInside(App[None]):
    """Every use of Textual's private names, for what has no public way."""

    environ: Mapping[str, str]
    """The environment of the process."""

    def keep_copied(self, text: str) -> None:
        """Keep what was copied, for Textual's own way to paste."""
        self._clipboard = text

    def send(self, sequence: str) -> None:
        """Send the terminal a control sequence that is no part of a frame."""
        if self._driver:
            self._driver.write(sequence)

    def effective_bindings(self, node: DOMNode) -> Iterator[Binding]:
        """Yield a node's bindings with the keys of the user's config."""
        bindings = node._bindings.copy()
        bindings.apply_keymap(self._keymap)
        for _, binding in bindings:
            yield binding

    def _handle_exception(self, error: Exception) -> None:
        # A screen that is being opened while the app closes gets no widgets and finds none; nobody needs to know.
        if self.is_running or not isinstance(error, NoMatches):
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        # Textual would print the traceback with all local variables; secrets may be among them.
        again = next((again for screen in self.screen_stack if (again := getattr(screen, "again", None))), None)
        self._exit_renderables[:] = [crash.note(self.environ, again)]
        self._close_messages_no_wait()
