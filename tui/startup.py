"""Changes to the process and to Textual's internals, each with its measured reason. No other file makes any.

`import tui` runs this file before Textual is imported. The figures are from `python -m tests.bench app-keys`: the time
from a key to the terminal while 64 ranks print 50 lines per second each. They are comparable because they come from
one session; with the settings here: median 6 ms, 99 % 42 ms. docs/performance.md has newer figures for `app-keys`.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, cast

from disttui.runner import __version__, private
from disttui.runner.user.folders import user_folder

# Textual reads this when it is imported. Frames are one to two periods apart: at Textual's 60 Hz, a key that arrives
# after a log line waits for up to 33 ms (99 %: 74 ms).
os.environ.setdefault("TEXTUAL_FPS", "120")
# No key here needs kitty's keyboard protocol, which would stay switched on if the process were killed.
os.environ.setdefault("TEXTUAL_DISABLE_KITTY_KEY", "1")

from textual import on
from textual._context import active_message_pump
from textual.app import App, ScreenStackError
from textual.css.query import NoMatches
from textual.dom import NoScreen
from textual.driver import Driver
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.worker import WorkerFailed, active_worker

from disttui.runner.text.glyphs import reduced

if TYPE_CHECKING:
    from textual.binding import Binding
    from textual.dom import DOMNode
    from textual.message_pump import MessagePump
    from textual.timer import Timer

SWITCH = 0.001
"""Seconds for which a thread may hold the interpreter while the event loop waits, which happens some ten times per key.

With Python's 5 ms: median 11 ms, 99 % 56 ms.
"""
THREADS = 64
"""Number of threads for blocking work. With Python's default, a few per core, slow hosts would delay all others."""


def freeze_objects() -> None:
    """Exclude the objects of a finished screen from garbage collection, and switch threads sooner.

    A collection visits every tracked object, which takes 50 ms for a dashboard while the user types. Without this:
    median 15 ms, 99 % 282 ms.
    """
    sys.setswitchinterval(SWITCH)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def unfreeze_objects() -> None:
    """Let the collector free the objects that `freeze_objects` excluded, after their screen has closed."""
    gc.unfreeze()


class Threads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`; the process does not wait for them when the app ends."""

    def __init__(self) -> None:
        super().__init__(THREADS, "disttui")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


class WholeCells(ScrollBarRender):
    """A scroll bar of whole cells, for terminals without partial block characters."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "]


def fit_bars() -> None:
    """Draw scroll bars as the terminal can show them."""
    ScrollBar.renderer = WholeCells if reduced(sys.__stderr__) else ScrollBarRender


class TextualInside(App[None]):
    """All uses of Textual's private names, each for a feature without a public interface."""

    environ: Mapping[str, str]
    """The environment of the process."""

    def set_timer(self, *args: Any, **kwargs: Any) -> Timer:
        """Start a timer that fires once, however late.

        Textual drops late ticks, even a timer's only one. If a resize lost its timer, every later resize would wait
        for it forever.
        """
        timer = super().set_timer(*args, **kwargs)
        timer._skip = False
        return timer

    def keep_copied(self, text: str) -> None:
        """Keep the copied text for Textual's own paste action."""
        self._clipboard = text

    def send(self, sequence: str) -> None:
        """Write a control sequence to the terminal, outside of a frame."""
        if self._driver:
            self._driver.write(sequence)

    def effective_bindings(self, node: DOMNode) -> Iterator[Binding]:
        """Yield a node's bindings with the keys of the user's config."""
        bindings = node._bindings.copy()
        bindings.apply_keymap(self._keymap)
        for _, binding in bindings:
            yield binding

    def action_suspend_process(self) -> None:
        """Suspend the app until the shell's `fg`; refuse if no shell could resume it."""
        parent = os.getppid()
        if parent and os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp():
            super().action_suspend_process()
        else:
            self.notify("cannot suspend: disttui was not started by an interactive shell", severity="warning")

    @on(Driver.SignalResume)
    def _repaint(self) -> None:
        # Textual repaints only after `App.suspend`.
        self.refresh(layout=True)

    def _handle_exception(self, error: Exception) -> None:
        # Missing widgets are not an error if a screen draws while it closes, or opens while the app closes.
        looked: BaseException = error
        by = active_message_pump.get(self)
        if isinstance(error, WorkerFailed):
            looked, by = error.error, active_worker.get().node
        if not isinstance(looked, NoMatches | NoScreen | ScreenStackError) or self._stays(by):
            super()._handle_exception(error)

    def _stays(self, by: MessagePump) -> bool:
        """Whether neither the app nor this part of it is being removed."""
        above = cast("DOMNode", by).ancestors_with_self
        return self.is_running and self in above and not any(node._pruning for node in above)

    def _fatal_error(self) -> None:
        # Textual would print the traceback with all local variables, which may include secrets.
        again = next((again for screen in self.screen_stack if (again := getattr(screen, "again", None))), None)
        self._exit_renderables[:] = [crash_note(self.environ, again)]
        self._close_messages_no_wait()


def crash_note(environ: Mapping[str, str], again: str | None) -> str:
    """Write the traceback of the current exception to a file; return the message for the user.

    Args:
        again: The command that opens the same screen again.
    """
    path = user_folder("state", environ) / "crash.txt"
    try:
        private.make_folder(path.parent)
        private.write(path, f"disttui {__version__}\n{traceback.format_exc()}")
        where = f"details are in {path}"
    except OSError as error:
        where = f"{path} could not be written ({error.strerror}):\n{traceback.format_exc()}"
    look = again or "disttui attach RUN"
    runs = "Runs keep running, except in a sandbox."
    return f"disttui: the app has crashed; this is a bug, {where}\n  → {runs} To return: {look}"
