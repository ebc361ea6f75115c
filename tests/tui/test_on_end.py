"""What a profile wants done at a run's end is done when a dashboard sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tui.live_kit import live, watched
from tests.tui.shelf_kit import shows, until
from tests.tui.widget_kit import asynchronous

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]


@asynchronous
async def test_the_dashboard_sees_the_end(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with live(tmp_path / "home", on_end={"command": ["sh", "-c", f"cat >> {told}"]}) as run:
        async with watched(run, read_only=True) as (pilot, app):
            await until(pilot, lambda: shows(app, "● running"))
            run.enough.touch()
            await until(pilot, lambda: shows(app, "finished"))
        assert not told.exists(), "who only looks changes nothing"
        for _ in range(2):
            async with watched(run) as (pilot, app):
                await until(pilot, lambda: shows(app, "finished") and told.exists() and told.read_text().endswith("}"))
    assert json.loads(told.read_text())["run"] == run.run
