"""What a profile wants done at a run's end is done when a dashboard sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disttui.tui.app import DisttuiApp
from disttui.tui.router import First
from tests.tui.live_kit import live, watched
from tests.tui.shelf_kit import environ, shows
from tests.tui.snap import until
from tests.tui.synthetic_run import write


async def test_a_dashboard_sees_the_end_of_a_run_that_has_ended(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    known = write(tmp_path / "data" / "disttui" / "runs" / "run-1", hosts=1, per_host=2, steps=5) / "run.json"
    run = json.loads(known.read_text())
    run["profile"]["on_end"] = {"command": ["sh", "-c", f"cat >> {seen}"]}
    known.write_text(json.dumps(run))
    for read_only in (True, False, False):
        app = DisttuiApp(environ(tmp_path), first=First("run", ("run-1",)), read_only=read_only)
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: shows(app, "finished"))  # noqa: B023 (called here)
            if not read_only:
                await until(pilot, lambda: seen.exists() and seen.read_text().endswith("}"))
        assert seen.exists() != read_only, "who only looks changes nothing"
    assert json.loads(seen.read_text())["run"] == "run-1"


@pytest.mark.torch
@pytest.mark.timeout(400)
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
