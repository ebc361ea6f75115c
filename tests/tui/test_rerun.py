"""The form of a run to run again."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from disttui.runner.api.carrying import collect_code
from disttui.runner.api.rerunning import again, resumed_run
from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.runs.notes import Checkpoint
from disttui.runner.runs.registry import KnownRun, load_run, profile_of
from disttui.tui.dialogs.prompts import ConfirmScreen
from disttui.tui.dialogs.rerun import RerunScreen
from disttui.tui.run.again import RerunValue, overrides, settings
from tests.tui import shelf_kit as kit
from tests.tui.shelf_kit import Doors
from tests.tui.snap import press, screen_text, until

SAVED = (
    Checkpoint("grace", "step-005000-a1", kit.NOW - 200, "~/.disttui/runs/pair-91bd/checkpoints", 3 << 30, 5000),
    Checkpoint("grace", "step-002500-a1", kit.NOW - 900, "~/.disttui/runs/pair-91bd/checkpoints", 3 << 30, 2500, False),
)


def _ended(folder: Path) -> None:
    place = kit.add_run(
        folder, "pair-91bd", {"ada": 4, "grace": 4}, ago=900, heard=100, end="finished", step=5000, steps=5000, loss=1.2
    )
    known = json.loads((place / "run.json").read_text())
    job = {"script": "train.py", "args": ["--lr", "${var:lr}", "--name", "two words"], "env": {"MODE": "fast"}}
    known["template"] = {**known["profile"], "job": job, "var": {"lr": 3e-4}, "launch": {"grace": 7}}
    known["profile"] |= {"job": {**job, "args": ["--lr", "0.0003", "--name", "two words"]}, "launch": {"grace": 7}}
    (place / "run.json").write_text(json.dumps(known))


@asynccontextmanager
async def _form(
    folder: Path, key: str, answer: DisttuiError | None = None
) -> AsyncIterator[tuple[Doors, Pilot[None], list[Any]]]:
    """The form of the run, and the reruns that it is left with; `answer` is that of its hosts."""
    opened: list[Any] = []
    with patch("disttui.tui.run.again.checkpoints", side_effect=answer, return_value=list(SAVED)):
        async with kit.home(folder) as (app, pilot):
            app.router.open_again = opened.append  # type: ignore[assignment, method-assign]
            await press(pilot, key, then=lambda: isinstance(app.screen, RerunScreen) and app.screen.ready)
            await until(pilot, lambda: kit.shows(app, "not known" if answer else "step-005000-a1"))
            yield app, pilot, opened


async def test_a_host_may_ask_while_the_form_waits_for_it(tmp_path: Path) -> None:
    _ended(tmp_path)
    async with _form(tmp_path, "R") as (app, pilot, opened):
        answers: list[Any] = []
        assert app._questions.put("box1", ConfirmScreen("Log in?", "", "yes"), answers.append)
        assert not app._questions.put("box2", ConfirmScreen("Here too?", "", "yes"), answers.append), "one at a time"
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        await press(pilot, "y", then=lambda: isinstance(app.screen, RerunScreen))
        assert answers == [True] and not opened


async def test_a_rerun_takes_new_values_and_marks_the_changed_ones(tmp_path: Path) -> None:
    _ended(tmp_path)
    sizes = ((80, 24), (120, 35), (200, 50))
    async with _form(tmp_path, "r") as (app, pilot, opened):
        for size in sizes:
            await pilot.resize_terminal(*size)
            await until(pilot, lambda size=size: app.size == size)  # type: ignore[misc]
            assert re.search(r"job.args +--lr '\$\{var:lr\}' --name 'two words'", screen_text(app)), screen_text(app)
            assert "•" not in screen_text(app)
        app.screen.query_one("#value-1", Input).value = "1.5e-4"
        for size in sizes:
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: re.search(r"• var.lr +1.5e-4 +was 0.0003", screen_text(app)))
        app.screen.query_one("#value-0", Input).value += " --steps 10"
        await press(pilot, "enter", then=lambda: opened)
    (made,) = opened
    assert made.profile.job.args == ("--lr", "1.5e-4", "--name", "two words", "--steps", "10")
    assert (made.profile.launch.grace, made.resume_from) == (7, None)


async def test_silent_hosts_are_not_hosts_without_checkpoints(tmp_path: Path) -> None:
    _ended(tmp_path)
    async with _form(tmp_path, "R", HostError("grace", "no answer in 20 s")) as (app, *_):
        assert kit.shows(app, "✗ its checkpoints are not known: grace: no answer in 20 s"), screen_text(app)


@pytest.mark.parametrize(
    ("keys", "source"), [((), ""), (("down",), "/step-002500-a1"), (("up",), None)], ids=["newest", "older", "none"]
)
async def test_a_run_is_resumed_from_the_checkpoint_that_is_chosen(
    tmp_path: Path, keys: tuple[str, ...], source: str | None
) -> None:
    """By step, loss, age, size and host; the folder of all of them, unless an older one is chosen."""
    _ended(tmp_path)
    async with _form(tmp_path, "R") as (app, pilot, opened):
        line = r"› +with step-005000-a1 +5,000 +1.2 +.* ago +3.0 GiB +grace"
        await until(pilot, lambda: re.search(line, screen_text(app)))
        await press(pilot, *keys, "enter", then=lambda: opened)
    (made,) = opened
    folder = "~/.disttui/runs/pair-91bd/checkpoints"
    assert made.resume_from == (None if source is None else folder + source)


async def test_a_wrong_value_is_reported_below_the_open_form(tmp_path: Path) -> None:
    _ended(tmp_path)
    async with _form(tmp_path, "r") as (app, pilot, opened):
        grace = next(one for one in app.screen.query(Input) if one.value == "7")
        grace.value = "soon"
        await press(pilot, "enter", shows="--set launch.grace=")
        app.screen.query_one("#value-0", Input).value = "--name 'two"
        grace.value = "7"
        await press(pilot, "enter", shows="job.args: no closing quotation")
        await press(pilot, "escape", then=lambda: not isinstance(app.screen, RerunScreen))
    assert opened == []


def test_what_is_typed_is_what_set_takes(tmp_path: Path) -> None:
    _ended(tmp_path)
    run = load_run(tmp_path / "data" / "disttui" / "runs" / "pair-91bd")
    profile = again(run).profile
    known = {one.key: one.text for one in settings(run, profile)}
    assert known["hosts"] == "ada grace" and known["launch.restarts"] == "0" and known["job.env.MODE"] == "fast"
    changes = [
        RerunValue("hosts", "ada"),
        RerunValue("job.env.MODE", "12"),
        RerunValue("", "launch.restarts=3 name=other"),
    ]
    made = again(run, overrides(run, profile, changes)).profile
    assert ([host.host for host in made.hosts], made.job.env["MODE"], made.launch.restarts) == (["ada"], "12", 3)
    assert made.name == "other"


@pytest.mark.parametrize(("gone", "typed", "latest"), [(False, None, False), (False, "yes", True), (True, None, True)])
async def test_a_rerun_uses_recorded_code_or_the_current_folder(
    tmp_path: Path, gone: bool, typed: str | None, latest: bool
) -> None:
    _ended(tmp_path)
    place, code = tmp_path / "data/disttui/runs/pair-91bd", tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("1")
    known = json.loads((place / "run.json").read_text())
    for profile in (known["profile"], known["template"]):
        profile["job"]["sync"] = {"from": str(code)}
    (place / "run.json").write_text(json.dumps(known))
    if not gone:
        own = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        made = collect_code(profile_of(load_run(place)), own)
        assert made
        (place / "code.tree").write_bytes(made.manifest)
    (code / "train.py").write_text("22")
    with patch.dict("os.environ", {"XDG_CACHE_HOME": str(tmp_path / "cache")}):
        async with _form(tmp_path, "r") as (app, pilot, opened):
            assert re.search(f"latest code +{'yes' if gone else 'no'}", screen_text(app)), screen_text(app)
            assert ("Its recorded code is no longer here" in screen_text(app)) == gone
            choice = next(one for one in app.screen.query(Input) if one.value in ("yes", "no"))
            if typed:
                choice.value = "maybe"
                await press(pilot, "enter", shows="latest code: expected yes or no")
                choice.value = typed
            await press(pilot, "enter", then=lambda: opened)
    (again_,) = opened
    assert (again_.code.recorded, again_.code.size) == (not latest, 2 if latest else 1)


@pytest.mark.parametrize("one", ["", "/step-000300-a1"])
def test_the_resumed_run_is_found_by_its_checkpoint_path(tmp_path: Path, one: str) -> None:
    folder = f"/scratch/runs/pair-91bd/checkpoints{one}"
    run = KnownRun("pair-7f3a", tmp_path / "pair-7f3a", (), {}, "~/runs", 0.0, "me", resume_from=folder)
    before = resumed_run(run)
    assert before is not None and (before.run, before.run_dir) == ("pair-91bd", "/scratch/runs")
