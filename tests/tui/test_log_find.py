"""Finding in a log: what the prompt makes of a second search."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.tui.demo_log import DemoLog, Writer
from tests.tui.snap import screen_text
from tests.tui.test_log_view import cursor_line, play, type_in, until


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def test_a_second_search_takes_the_place_of_the_first(writer: Writer) -> None:
    writer.steps(0, 60)

    async def scenario(app: DemoLog, pilot: Pilot[None]) -> None:
        await pilot.press("g")
        await type_in(pilot, "slash", "loss")
        await until(pilot, lambda: "/ “loss” 1 of" in screen_text(app))
        await type_in(pilot, "slash", "checkpoint at step 5")
        await until(pilot, lambda: "/ “checkpoint at step 5” 1 of" in screen_text(app))
        assert "saved checkpoint at step 50" in cursor_line(app)
        await pilot.press("slash", "end", "0", "enter")
        await until(pilot, lambda: "/ “checkpoint at step 50” 1 of 4" in screen_text(app))

    play(writer, scenario)
