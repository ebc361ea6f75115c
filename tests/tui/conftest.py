"""What the tests of the app wait for after a key or a pause: the app itself, and not a quiet machine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import textual.app
import textual.pilot
from textual.app import ScreenStackError
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.message_pump import MessagePump

from disttui.tui import startup

FRAME = 0.010
"""Seconds: longer than a frame of the app (see tui/__init__.py), so that a pending repaint is never missed."""
SLICE = 0.004
"""Seconds over which the CPU time of threads is looked at."""
BUSY = 0.05
"""Share of a slice that threads may use and still count as idle."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that awaits."""
    test = pyfuncitem.obj
    if not asyncio.iscoroutinefunction(test):
        return None
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in signature(test).parameters}))
    return True


async def wait_for_idle(min_sleep: float = 0.0, max_sleep: float = 30.0) -> None:
    """Wait until the event loop has nothing to do for a frame, and no thread computes.

    It replaces Textual's own, which sleeps in steps of 20 ms until the process has used less than 1 ms of CPU in one of
    them. Like that one it gives up after `max_sleep` seconds, but a busy machine may take long for what is still to do.
    """
    loop: Any = asyncio.get_running_loop()
    start = time.monotonic()
    while time.monotonic() - start < max_sleep:
        await asyncio.sleep(0)
        if loop._ready:
            continue
        due = _next_timer(loop)
        if due < FRAME:
            await asyncio.sleep(max(due, 0))
            continue
        before, begun = _cpu_of_threads(), time.monotonic()
        await asyncio.sleep(SLICE)
        used, passed = _cpu_of_threads() - before, time.monotonic() - begun
        busy = used >= BUSY * passed or _threads_want_cpu()
        if not busy and not loop._ready and time.monotonic() - start >= min_sleep:
            return


def _next_timer(loop: Any) -> float:
    """Seconds until the event loop has something to do by itself."""
    soonest: float = min((timer.when() for timer in loop._scheduled if not timer.cancelled()), default=float("inf"))
    return soonest - float(loop.time())


def _cpu_of_threads() -> float:
    """Seconds of CPU that all threads but this one have used."""
    return time.process_time() - time.thread_time()


def _threads_want_cpu() -> bool:
    """Whether a thread would run now if it had a CPU; where there is no /proc, their CPU time alone counts."""
    own = str(threading.get_native_id())
    for stat in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):
            if stat.parent.name != own and stat.read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


_wait_for_all = textual.pilot.Pilot._wait_for_screen


async def _wait_for_screen(self: textual.pilot.Pilot[Any], timeout: float = 3600.0) -> bool:
    """Wait until no widget of the screen has anything left to do.

    Textual's own sends each of them a message to find out: a seventh of the CPU of the wizard's tests. Its 30 s pass on
    a machine that others keep busy; pytest has a limit of its own.
    """
    await asyncio.sleep(0)
    with suppress(ScreenStackError):
        if all(map(_waits_for_messages, (self.app, *self.app.screen.walk_children(with_self=True)))):
            return not self.app._exception_event.is_set()
    return await _wait_for_all(self, timeout)


def _waits_for_messages(pump: MessagePump) -> bool:
    queue: Any = pump._message_queue
    return queue.empty() and bool(queue.ready_event._waiters) and not pump._next_callbacks


@pytest.fixture(autouse=True)
def _the_app_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (textual.app, textual.pilot):
        monkeypatch.setattr(module, "wait_for_idle", wait_for_idle)
    monkeypatch.setattr(textual.pilot.Pilot, "_wait_for_screen", _wait_for_screen)
    yield


@pytest.fixture(autouse=True)
def _the_collector_keeps_away_from_what_tests_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each dashboard would have it visit the modules of all tests: a third of its CPU (see tests/conftest.py)."""
    monkeypatch.setattr(startup, "gc", SimpleNamespace(freeze=int, unfreeze=int, collect=int))


_parse_rules = Stylesheet._parse_rules
_parsed: dict[tuple[object, ...], list[RuleSet]] = {}


def _parsed_once(
    self: Stylesheet, css: str, read_from: Any, is_default_rules: bool = False, tie_breaker: int = 0, scope: str = ""
) -> list[RuleSet]:
    key = (css, read_from, is_default_rules, tie_breaker, scope, *self._variables.items())
    if key not in _parsed:
        _parsed[key] = _parse_rules(self, css, read_from, is_default_rules, tie_breaker, scope)
    return _parsed[key]


@pytest.fixture(autouse=True)
def _css_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what was parsed for the apps of all tests, as Textual keeps it for all screens of one app."""
    monkeypatch.setattr(Stylesheet, "_parse_rules", _parsed_once)
