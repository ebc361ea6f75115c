"""The app is left while it still opens a screen: that is no failure, and nothing is left waiting."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.tui.shelf_kit import busy_machine, environ
from tests.unit.waiting import wait_for
from tui.app import DisttuiApp
from tui.dashboard.screen import DashboardScreen


@pytest.mark.parametrize("rounds", range(0, 12, 2))
def test_the_app_is_left_while_a_run_is_being_opened(tmp_path: Path, rounds: int) -> None:
    busy_machine(tmp_path)

    async def play() -> None:
        app = DisttuiApp(environ(tmp_path))
        async with app.run_test():
            app.push_screen(DashboardScreen("pair-91bd"))
            for _ in range(rounds):
                await asyncio.sleep(0)

    asyncio.run(play())
    wait_for(lambda: not any(one.name.startswith("disttui") for one in threading.enumerate()), "the threads' end")
