"""A real run is stopped from its dashboard and from the home screen; under --read-only from neither."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttui.runner.ids import short
from disttui.tui.dialogs.prompts import ConfirmScreen
from disttui.tui.home.screen import ask_hosts
from tests.tui.live_kit import Live, live, watched
from tests.tui.shelf_kit import asked, at_home, shows
from tests.tui.snap import press, screen_text, until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path / "home") as made:
        yield made


async def test_from_the_dashboard_unless_it_is_read_only(tmp_path: Path) -> None:
    """A second stop kills what is deaf to the first."""
    job = {"script": str(tmp_path / "home" / "deaf.py")}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "deaf.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('x counts 1', flush=True)\n"
        "time.sleep(900)\n"
    )
    with live(tmp_path / "home", job=job, launch={"grace": 300}) as run:
        async with watched(run, read_only=True) as (pilot, app):
            await until(pilot, lambda: shows(app, "● running") and shows(app, "2 ranks"))
            await press(pilot, "s", "s")
            assert not app.screen.is_modal and not re.search(r"\bs stop\b", screen_text(app))
        async with watched(run, first=None, read_only=True) as (pilot, app):
            await at_home(pilot)
            await until(pilot, lambda: shows(app, short(run.run)) and shows(app, "read-only"))
            await press(pilot, "x")
            assert not app.screen.is_modal
        alive = set(run.pids())
        assert len(alive) == 5, "two ranks, launcher, supervisor, warden"
        async with watched(run) as (pilot, app):
            await until(pilot, lambda: shows(app, "● running") and shows(app, "2 ranks"))
            await press(pilot, "s", then=lambda: isinstance(app.screen, ConfirmScreen))
            await asked(pilot)
            seen = " ".join(screen_text(app).split())
            assert f"Stop {short(run.run)}?" in seen
            assert "2 ranks on 1 host get SIGTERM and time to save a checkpoint" in seen
            await press(pilot, "escape", then=lambda: not app.screen.is_modal)
            assert set(run.pids()) == alive, "the safe answer changes nothing"
            await asked(pilot, "s")
            await press(pilot, "tab", "enter", shows="press s again to kill now")
            assert run.pids()
            await press(pilot, "s", shows=f"Kill {short(run.run)} now?")
            assert "immediately, without saving" in " ".join(screen_text(app).split())
            await asked(pilot)
            await press(pilot, "y", then=lambda: not run.pids())
            await until(pilot, lambda: shows(app, "■ stopped"))
            await until(pilot, lambda: not shows(app, "killing") and not shows(app, "press s again to kill"))
            await until(pilot, lambda: not re.search(r"\bs stop\b", screen_text(app)))


async def test_from_home_where_its_hosts_report_it_as_running(run: Live) -> None:
    mirror = run.home / "data" / "disttui" / "runs" / run.run
    for path in mirror.rglob("*"):
        os.utime(path, (1.7e9, 1.7e9))  # nobody has looked at it for long
    async with watched(run, first=None) as (pilot, app):
        await at_home(pilot)
        await until(pilot, lambda: shows(app, "● running") and shows(app, short(run.run)))
        assert ask_hosts(run.environ, None, set()) == {}, "nothing is wrong with any host"
        await press(pilot, "x", then=lambda: isinstance(app.screen, ConfirmScreen))
        await asked(pilot)
        seen = " ".join(screen_text(app).split())
        assert f"Stop {short(run.run)}?" in seen
        assert "Stops 2 processes on local" in seen and "SIGTERM to let them save" in seen
        await press(pilot, "y", then=lambda: not run.pids())
        await until(pilot, lambda: shows(app, "■ stopped"))
