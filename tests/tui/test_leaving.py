"""The app is left while it still opens a screen: that is not a failure, and nothing is left waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual import on, work
from textual.message import Message
from textual.messages import Prune
from textual.screen import Screen
from textual.worker import WorkerFailed

from disttui.tui.app import DisttuiApp
from disttui.tui.dashboard.screen import DashboardScreen
from disttui.tui.screen import DisttuiModal, DisttuiScreen
from disttui.tui.widgets.bars import HeaderBar
from tests.tui.shelf_kit import busy_machine, environ
from tests.unit.waiting import wait_for


@pytest.mark.parametrize("rounds", range(0, 12, 2))
def test_the_app_is_left_while_a_run_is_being_opened(tmp_path: Path, rounds: int) -> None:
    busy_machine(tmp_path)

    async def leave() -> None:
        app = DisttuiApp(environ(tmp_path))
        async with app.run_test():
            app.push_screen(DashboardScreen("pair-91bd"))
            for _ in range(rounds):
                await asyncio.sleep(0)

    asyncio.run(leave())
    wait_for(lambda: not any(one.name.startswith("disttui") for one in threading.enumerate()), "the threads' end")


class _Busy(DisttuiScreen):
    """Touches its widgets all the time, as a dashboard does that draws."""

    def on_mount(self) -> None:
        self._keep_busy()

    @work
    async def _keep_busy(self) -> None:
        while True:
            self.header.show("busy")
            await asyncio.sleep(0)


class _BusyModal(DisttuiModal[None]):
    def compose(self) -> Iterator[HeaderBar]:
        yield HeaderBar()

    def on_mount(self) -> None:
        self._keep_busy()

    @work
    async def _keep_busy(self) -> None:
        while True:
            self.query_one(HeaderBar).show("busy")
            await asyncio.sleep(0)


class _News(Message):
    pass


class _Closes(DisttuiScreen):
    """Gets news of its run when it already closes, and draws what has arrived since."""

    @on(Prune)
    def on_the_way_out(self) -> None:
        self.post_message(_News())

    @work
    async def on__news(self) -> None:
        while True:
            self.header.show("late")
            await asyncio.sleep(0)


@pytest.mark.parametrize("screen", [_Busy, _BusyModal, _Closes])
async def test_a_screen_closed_while_being_drawn_crashes_nothing(
    tmp_path: Path, screen: Callable[[], Screen[None]]
) -> None:
    """For the screen before, and with the app: it may look for widgets that have gone before it."""
    app = DisttuiApp(environ(tmp_path))
    async with app.run_test():
        await app.push_screen(screen())
        await app.pop_screen()
        await app.push_screen(screen())


async def test_a_screen_that_stays_and_misses_a_widget_is_a_failure(tmp_path: Path) -> None:
    class Misses(_Busy):
        def compose(self) -> Iterator[HeaderBar]:
            return iter(())

    with pytest.raises(WorkerFailed, match="HeaderBar"):
        app = DisttuiApp(environ(tmp_path))
        async with app.run_test() as pilot:
            await app.push_screen(Misses())
            await pilot.pause()
