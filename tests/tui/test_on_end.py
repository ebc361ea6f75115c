"""What a profile wants done at a run's end is done when a dashboard sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tui.live_kit import live, watched
from tests.tui.shelf_kit import shows
from tests.tui.snap import until
from tests.tui.widget_kit import asynchronous

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]


@asynchronous
async def test_the_dashboard_sees_the_end(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    with live(tmp_path / "home", on_end={"command": ["sh", "-c", f"cat >> {seen}"]}) as run:
        async with watched(run, read_only=True) as (pilot, app):
            await until(pilot, lambda: shows(app, "● running"))
            run.enough.touch()
            await until(pilot, lambda: shows(app, "finished"))
        assert not seen.exists(), "who only looks changes nothing"
        for _ in range(2):
            async with watched(run) as (pilot, app):
                await until(pilot, lambda: shows(app, "finished") and seen.exists() and seen.read_text().endswith("}"))
    assert json.loads(seen.read_text())["run"] == run.run
