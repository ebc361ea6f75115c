"""What the log view looks like, at every size and with nothing in it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.tui.demo_log import Writer
from tests.tui.log_kit import log_view
from tests.tui.snap import SIZES, assert_snapshot, press, screen_text, until


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return Writer(tmp_path)


async def test_nothing_yet(writer: Writer) -> None:
    async with log_view(writer) as (app, pilot):
        for key in (*"kjGgvyYoexnNtwa5[", "escape", "pagedown", "end", "left", "right"):
            await pilot.press(key)
            await pilot.press("escape")
        assert "printed nothing yet" in screen_text(app)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_how_it_looks(writer: Writer, size: tuple[int, int]) -> None:
    writer.steps(0, 100)
    async with log_view(writer, size=size) as (app, pilot):
        view = app.log_view
        name = f"log_{size[0]}x{size[1]}"
        await until(pilot, lambda: view.lines.lines.count == 403 and "f follow" in screen_text(app))
        assert_snapshot(app, f"{name}_follow")
        await press(pilot, "e", then=lambda: view.lines.progress.searched and not view.following)
        await press(pilot, "v", "j", "x", shows="×")
        assert_snapshot(app, f"{name}_error_folded")
        await pilot.press("ampersand", *"loss 3.5")
        await until(pilot, lambda: "close" in screen_text(app) and "loss 3.5" in screen_text(app).splitlines()[-2])
        assert_snapshot(app, f"{name}_prompt")
