"""What the app offers for a run that has ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from disttui.runner.runs.registry import known_runs
from disttui.runner.user.terminal import editor_command
from disttui.tui.app import DisttuiApp, PaletteProvider
from disttui.tui.router import First
from disttui.tui.widgets.bars import FooterBar
from tests.cluster.typed import COMMAND
from tests.command import ran
from tests.tui.shelf_kit import asked, environ, shows
from tests.tui.snap import press, screen_text, until
from tests.tui.synthetic_run import fail, write

_JOB = """
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["DISTTUI_CHECKPOINTS"])
before = os.environ.get("DISTTUI_RESUME_FROM")
pathlib.Path(os.environ["DISTTUI_DIR"], "seen").write_text(json.dumps([sys.argv[1:], bool(before)]))
folder.mkdir(parents=True, exist_ok=True)
(folder / "last").write_text("weights")
"""


def _failed(folder: Path, code: Path) -> None:
    """A run whose rank 1 has raised at line 3 of a file, as its mirror."""
    mirror = write(folder / "data" / "disttui" / "runs" / "run-1", hosts=2, per_host=2, steps=40)
    fail(mirror, 1, f'  File "{code}", line 3, in step\n    raise ValueError("no such token")\n')


def _footer(app: DisttuiApp) -> str:
    return screen_text(app).splitlines()[-1]


async def _ended(app: DisttuiApp, pilot: Pilot[None], run: str) -> None:
    await until(pilot, lambda: app.screen.is_mounted and shows(app, run) and "rerun" in _footer(app), 120)


@pytest.mark.torch
async def test_an_ended_run_is_run_again_and_then_from_its_checkpoint(tmp_path: Path) -> None:
    """With the profile and the --set that it had, through the wizard's checks, each time as a new run."""
    environment = environ(tmp_path, LANG="C.UTF-8")
    (tmp_path / "job.py").write_text(_JOB)
    keys = {"disttui": 1, "name": "one", "hosts": ["local"], "num_processes": 1, "python": sys.executable}
    job = {"script": str(tmp_path / "job.py"), "args": ["7"]}
    (tmp_path / "one.yaml").write_text(json.dumps({**keys, "job": job, "launch": {"resume_args": ["--on"]}}))
    command = [COMMAND, "run", str(tmp_path / "one.yaml"), "--set", "launch.grace=7"]
    subprocess.run(command, env=environment, capture_output=True, timeout=120, check=True)
    (first,) = known_runs(environment)[0]
    with patch.dict(os.environ, environment):
        app = DisttuiApp(environment, first=First("run", (first.run,)))
        async with app.run_test(size=(120, 35), notifications=True) as pilot:
            await _ended(app, pilot, first.run[:8])
            await asked(pilot, "r")
            assert "Checks 1 host first: local" in screen_text(app)
            await pilot.press("enter")
            await until(pilot, lambda: len(known_runs(environment)[0]) == 2, 120)
            second = known_runs(environment)[0][0]
            await _ended(app, pilot, second.run[:8])
            await until(pilot, lambda: "R resume" in _footer(app), 60)
            await until(pilot, lambda: time.monotonic() > app.screen.query_one(FooterBar)._guarded_until)
            footer = _footer(app)
            await pilot.click("FooterBar", offset=(footer.index("R resume"), 0))
            await asked(pilot)
            await until(pilot, lambda: re.search(r"› +with last +moments ago +0 MiB +local", screen_text(app)))
            await pilot.press("enter")
            await until(pilot, lambda: len(known_runs(environment)[0]) == 3, 120)
            third = known_runs(environment)[0][0]
            await _ended(app, pilot, third.run[:8])
    third, second, _ = known_runs(environment)[0]
    runs = tmp_path / ".disttui" / "runs"
    seen = [json.loads((runs / one.run / "0" / "attempt-1" / "seen").read_text()) for one in (second, third)]
    assert seen == [[["7"], False], [["7", "--on"], True]]
    assert [one.profile["launch"]["grace"] for one in (second, third)] == [7, 7]
    assert second.source == third.source == str(tmp_path / "one.yaml")
    assert third.resume_from == f"~/.disttui/runs/{second.run}/checkpoints"


async def test_a_failed_run_opens_its_line_and_copies_its_summary(tmp_path: Path) -> None:
    code = tmp_path / "train.py"
    code.write_text('x = 1\n\nraise ValueError("no such token")\n')
    _failed(tmp_path, code)
    environment = environ(tmp_path, LANG="C.UTF-8", TZ="UTC")
    opened: list[tuple[Path, int]] = []
    copied: list[str] = []
    with (
        patch.dict(os.environ, environment),
        patch("disttui.tui.dashboard.ended.open_editor", lambda app, environ, path, line: opened.append((path, line))),
    ):
        app = DisttuiApp(environment, first=First("run", ("run-1",)), read_only=True)
        async with app.run_test(size=(120, 35), notifications=True) as pilot:
            await until(pilot, lambda: shows(app, "✗ failed"))
            offered = {one.title for one in PaletteProvider(app.screen)._actions()}
            assert "Copy summary" in offered and not any("Stop" in title for title in offered)
            app.copy = copied.append  # type: ignore[assignment, method-assign]
            assert "rerun" not in _footer(app), "it would change something"
            await until(pilot, lambda: time.monotonic() > app.screen.query_one(FooterBar)._guarded_until)
            await pilot.click("FooterBar", offset=(_footer(app).index("e edit line"), 0))
            await until(pilot, lambda: opened)
            await press(pilot, "y", then=lambda: copied)
            code.unlink()
            said: list[str] = []
            app.notify = lambda message, **_: said.append(message)  # type: ignore[method-assign]
            await press(pilot, "e", then=lambda: any("no such file on this machine" in text for text in said))
    assert opened == [(code, 3)]
    show = [COMMAND, "runs", "show", "run-1"]
    shown = ran(show, env=environment, check=True)
    assert copied[0].startswith("✗ run-1 failed after")
    assert shown.stdout.rstrip().endswith(copied[0])


@pytest.mark.parametrize(
    ("editor", "words"),
    [
        ("vim -R", ["vim", "-R", "+7", "x.py"]), ("nano", ["nano", "+7", "x.py"]),
        ("code --wait", ["code", "--wait", "--goto", "x.py:7"]), ("hx", ["hx", "x.py:7"]),
    ],
)  # fmt: skip
def test_the_editor_is_opened_at_the_line(tmp_path: Path, editor: str, words: list[str]) -> None:
    (tmp_path / words[0]).touch(0o755)
    assert editor_command({"PATH": str(tmp_path), "EDITOR": "ed", "VISUAL": editor}, Path("x.py"), 7) == words


async def test_a_rerun_replaces_the_dashboard_of_its_original(tmp_path: Path) -> None:
    for run in ("run-1", "run-2"):
        write(tmp_path / "data" / "disttui" / "runs" / run, hosts=1, per_host=1, steps=5)
    with patch.dict(os.environ, environ(tmp_path)):
        app = DisttuiApp(environ(tmp_path), first=First("replay", ("run-1",)))
        async with app.run_test(size=(100, 30)) as pilot:
            await _ended(app, pilot, "run-1")
            for repeated, below in (("run-0", 2), ("run-1", 1)):
                form = Screen[None]()
                await app.push_screen(form)
                app.router.open_run("run-2", instead=form, repeats=repeated)
                await until(pilot, lambda: shows(app, "run-2"))
                assert len(app.screen_stack) == 1 + below, repeated
                if below == 2:
                    app.pop_screen()
                    await until(pilot, lambda: shows(app, "run-1"))
