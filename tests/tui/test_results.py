"""What a run has saved, on the home screen, and the way from there to this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest
from textual.widgets import Input

from disttui.runner.runs.registry import known_runs
from disttui.tui.app import DisttuiApp
from disttui.tui.dialogs.pulling import PullScreen
from tests.cluster.typed import COMMAND
from tests.light import light_python
from tests.tui.shelf_kit import at_home, environ, home, shows
from tests.tui.snap import press, screen_text, until

_JOB = """
import os, pathlib
for step in (100, 300):
    folder = pathlib.Path(os.environ["DISTTUI_CHECKPOINTS"], f"step-{step:06}-a1")
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(bytes(3 << 20))
"""


@pytest.mark.slow
async def test_home_shows_and_copies_the_newest_checkpoint(tmp_path: Path) -> None:
    environment = environ(tmp_path, LANG="C.UTF-8")
    (tmp_path / "job.py").write_text(_JOB)
    keys = {
        "disttui": 1,
        "name": "one",
        "hosts": ["local"],
        "num_processes": 1,
        "python": light_python(tmp_path / "light"),
    }
    (tmp_path / "one.yaml").write_text(json.dumps({**keys, "job": {"script": str(tmp_path / "job.py")}}))
    command = [COMMAND, "run", str(tmp_path / "one.yaml")]
    subprocess.run(command, env=environment, capture_output=True, timeout=120, check=True)
    (run,) = known_runs(environment)[0]
    with patch.dict(os.environ, environment):
        app = DisttuiApp(environment)
        async with app.run_test(size=(160, 40), notifications=True) as pilot:
            await at_home(pilot)
            await until(pilot, lambda: shows(app, "checkpoint 300  3 MiB"), 120)
            assert re.search(r"saved +step-000300-a1 on local, 3 MiB: p copies it here", screen_text(app))
            await press(pilot, "p", then=lambda: isinstance(app.screen, PullScreen))
            line = app.screen.query_one(Input)
            assert line.value == str(Path.cwd() / run.run)
            line.value = "~/here"
            await pilot.press("enter")
            await until(pilot, lambda: shows(app, "2 files, 6 MiB copied"), 120)
            await press(pilot, "enter", then=lambda: not isinstance(app.screen, PullScreen))
            await press(pilot, "p", then=lambda: isinstance(app.screen, PullScreen))
            app.screen.query_one(Input).value = "~/here"
            await pilot.press("enter")
            await until(pilot, lambda: shows(app, "everything is already here"), 120)
    copied = tmp_path / "here" / "checkpoints" / "step-000300-a1" / "model.bin"
    assert copied.stat().st_size == 3 << 20


async def test_a_copy_to_an_unknown_user_is_not_begun(tmp_path: Path) -> None:
    async with home(tmp_path) as (app, pilot):
        await app.push_screen(PullScreen("pair-91bd"))
        app.screen.query_one(Input).value = "~no-such-user/results"
        await press(pilot, "enter", shows="✗ no such user: no-such-user")
        assert not app.screen.query_one(Input).disabled
