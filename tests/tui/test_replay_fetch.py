"""A run that ended while nobody followed it: its replay fetches what is missing here, or says what is."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from disttui.runner.runs.registry import find_run, mirror_of
from disttui.tui.app import DisttuiApp
from disttui.tui.dashboard.diagnosis import DiagnosisScreen
from disttui.tui.replay.screen import ReplayScreen
from disttui.tui.router import First
from tests.tui.live_kit import Live, watched
from tests.tui.shelf_kit import shows
from tests.tui.snap import press, until
from tests.unit.history_kit import environ as of
from tests.unit.history_kit import kept, lines, mirrored
from tests.unit.waiting import wait_for

JOB = """
import os, time
print("step: 1/4 | loss: 2.5", flush=True)
printed = os.path.join(os.path.dirname(__file__), "printed")
if os.environ["RANK"] == "0":
    open(printed, "x").close()
else:
    while not os.path.exists(printed):  # else rank 0 may be stopped before it has a log
        time.sleep(0.01)
    raise ValueError("no such token")
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A detached run that has failed since its viewer left."""
    home = tmp_path_factory.mktemp("failed")
    (home / "raising.py").write_text(JOB)
    run = Live(home, job={"script": str(home / "raising.py")})
    wait_for((run.folder / "exit.json").exists, "the run's end", 120)
    yield run
    run.typed("stop", "--now", run.run)


def incomplete(run: Live, name: str, **host: object) -> dict[str, str]:
    """The environment of a viewer that has the first records of the run, and knows its host under this address."""
    environ = run.elsewhere(name)
    folder = run.home / name / "disttui" / "runs" / run.run
    known = json.loads((folder / "run.json").read_text())
    known["hosts"][0] |= host
    (folder / "run.json").write_text(json.dumps(known))
    (folder / "0").mkdir()
    shutil.copy(run.folder / "spec.json", folder / "0")
    first = (run.folder / "events.jsonl").read_bytes().splitlines(keepends=True)[:2]
    (folder / "0" / "events.jsonl").write_bytes(b"".join(first))
    (folder / "0" / ".mirror.json").write_text(json.dumps({"spec.json": [0, 0], "events.jsonl": [0, 0]}))
    return environ


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])
async def test_home_opens_a_run_that_ended_unseen_with_cause(failed: Live, size: tuple[int, int]) -> None:
    environ = incomplete(failed, f"home{size[0]}")
    with patch.dict(os.environ, environ):
        app = DisttuiApp(environ)
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, lambda: any(row.state == "failed" for row in app.inventory.runs), 60)
            if size[0] == 80:
                await pilot.press("d")
            await until(pilot, lambda: shows(app, "rank 1: ValueError: no such token"))
            await pilot.press("enter")
            await until(pilot, lambda: shows(app, "rank 1 on local raised ValueError"), 60)
            await until(pilot, lambda: shows(app, "local:1") and shows(app, "ValueError: no such token"))
            assert not shows(app, "starting")
            await pilot.press("d")
            await until(pilot, lambda: isinstance(app.screen, DiagnosisScreen) and shows(app, "no such token"), 60)


async def test_replay_waits_for_the_viewer_that_fetches_the_run(failed: Live) -> None:
    environ = incomplete(failed, "both")
    known = find_run(failed.run, environ)
    seen = {"run": failed.run, "node_rank": 0, "state": "failed", "ended": time.time()}
    (known.folder / "seen.json").write_text(json.dumps(seen))
    with patch.dict(os.environ, environ):
        app = DisttuiApp(environ, first=First("replay", (failed.run,)))
        other = ExitStack()
        other.enter_context(mirror_of(known))
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            await until(pilot, lambda: shows(app, "fetching"))
            other.close()
            await until(pilot, lambda: shows(app, "rank 1 on local raised ValueError"), 60)


async def test_replay_without_its_hosts_says_what_is_missing(failed: Live) -> None:
    environ = incomplete(failed, "far", host="127.0.0.1", port=9)
    seen = {
        "run": failed.run,
        "node_rank": 0,
        "state": "failed",
        "ended": time.time(),
        "step": 1,
        "cause": {"rank": 1, "kind": "exception", "type": "ValueError"},
    }
    folder = Path(environ["XDG_DATA_HOME"]) / "disttui" / "runs" / failed.run
    (folder / "seen.json").write_text(json.dumps(seen))
    async with watched(failed, environ, first=First("replay", (failed.run,))) as (pilot, app):
        await until(pilot, lambda: shows(app, "the rest of this run is not on this machine"), 60)
        assert shows(app, "refuses the connection") and shows(
            app, "its hosts reported: failed at step 1: rank 1: ValueError"
        )
        assert shows(app, "◇ incomplete")
        await until(pilot, lambda: shows(app, "Its log is not on this machine."))
        await press(pilot, "home", then=lambda: not shows(app, "incomplete"))


async def test_replay_of_a_run_that_was_removed_says_so(failed: Live) -> None:
    environ = incomplete(failed, "old")
    path = Path(environ["XDG_DATA_HOME"]) / "disttui" / "runs" / failed.run / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "run_dir": str(failed.home / "elsewhere")}))
    async with watched(failed, environ, first=First("replay", (failed.run,))) as (pilot, app):
        await until(pilot, lambda: shows(app, "✗ is lost: its run folder on local was removed"), 60)


async def test_replay_of_a_run_with_nothing_here_says_why(failed: Live) -> None:
    environ = failed.elsewhere("nothing")
    path = Path(environ["XDG_DATA_HOME"]) / "disttui" / "runs" / failed.run / "run.json"
    known = json.loads(path.read_text())
    known["hosts"][0] |= {"host": "127.0.0.1", "port": 9}
    path.write_text(json.dumps(known))
    async with watched(failed, environ, first=First("replay", (failed.run,))) as (pilot, app):
        await until(pilot, lambda: shows(app, "nothing of this run is on this machine"), 60)
        assert shows(app, "refuses the connection")


async def test_leaving_a_replay_ends_its_fetching(failed: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the mirror would stay locked, and the next replay would show less than it could."""
    closed: list[bool] = []
    environ = incomplete(failed, "left")
    async with watched(failed, environ, first=None) as (pilot, app):
        viewer = app.new_viewer()
        monkeypatch.setattr(app, "new_viewer", lambda: viewer)
        monkeypatch.setattr(viewer, "reach", lambda *_, **__: _wait_until(lambda: bool(closed)))
        monkeypatch.setattr(viewer, "close", lambda: closed.append(True))
        app.router.open_replay(failed.run)
        await until(pilot, lambda: isinstance(app.screen, ReplayScreen) and app.screen._viewer is viewer)
        await press(pilot, "escape", then=lambda: bool(closed))


def _wait_until(condition: object) -> None:
    assert callable(condition)
    while not condition():
        time.sleep(0.05)
    raise OSError


async def test_replay_of_a_run_lost_with_its_sandbox_says_so(tmp_path: Path) -> None:
    """It was "incomplete", and all of its ranks were running."""
    run = kept(tmp_path, sandbox=True)
    mirrored(run, 0, {"events.jsonl": lines({"t": 10, "e": "launch", "attempt": 1}, {"t": 20, "e": "step"})})
    app = DisttuiApp(of(tmp_path), first=First("replay", (run.run,)))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until(pilot, lambda: shows(app, "✗ is lost: its sandbox has ended"), 60)
        assert not shows(app, "incomplete") and not shows(app, "running")
        await press(pilot, "home", then=lambda: not shows(app, "lost"))
