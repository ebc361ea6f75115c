"""The comparison of marked runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from textual.pilot import Pilot

from disttui.runner.api.comparing import curve_of
from disttui.runner.runs.registry import load_run
from disttui.runner.text.glyphs import plain
from disttui.tui.compare.screen import CompareScreen
from tests.tui import shelf_kit as kit
from tests.tui.shelf_kit import Doors
from tests.tui.snap import assert_snapshot, press, screen_text, until


def _sweep(folder: Path, rates: tuple[str, ...] = ("1e-4", "3e-4", "1e-3")) -> None:
    """Runs that differ in one argument, the oldest first; the second is the best."""
    for at, rate in enumerate(rates):
        place = kit.add_run(
            folder, f"vit-{at}abc", {"ada": 1}, ago=2000 - 300 * at, heard=100, end="finished",
            step=1000, steps=1000, loss=(1.9, 1.2, 2.4)[at % 3],
        )  # fmt: skip
        known = json.loads((place / "run.json").read_text())
        known["profile"]["job"] = {"script": "train.py", "args": ["--lr", rate]}
        (place / "run.json").write_text(json.dumps(known))


async def _opened(app: Doors, pilot: Pilot[None], marks: int) -> CompareScreen:
    await pilot.press(*["space"] * marks, "v")
    await until(pilot, lambda: isinstance(app.screen, CompareScreen) and kit.shows(app, "job.args"))
    assert isinstance(app.screen, CompareScreen)
    return app.screen


async def test_marked_runs_are_overlaid_and_the_best_is_marked(tmp_path: Path) -> None:
    _sweep(tmp_path)
    async with kit.home(tmp_path, size=(120, 35)) as (app, pilot):
        assert "v compare" not in screen_text(app)
        await press(pilot, "space", shows="marked")
        assert "v compare" not in screen_text(app), "one run is compared with nothing"
        await press(pilot, "space", "space", shows="v compare")
        await _opened(app, pilot, 0)
        await assert_snapshot(pilot, "compare-120x35")
        for size in ((120, 35), (80, 24), (200, 50)):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda size=size: app.size == size)  # type: ignore[misc]
            shown = screen_text(app)
            assert "best vit-1abc" in shown
            assert re.search(r"b ━ vit-1abc  1.2 at step 1,000 after .*best", shown), shown
            assert len(re.findall("best", shown)) == 2
            assert re.search(r"job.args +a --lr 1e-4  b --lr 3e-4  c --lr 1e-3", shown), shown


async def test_lines_carry_letters_in_ascii_without_colours(tmp_path: Path) -> None:
    _sweep(tmp_path)
    async with kit.home(tmp_path, size=(120, 35)) as (app, pilot):
        await _opened(app, pilot, 3)
        chart = plain(screen_text(app), "ascii").split("Differences")[0].split("best\n")[1]
        lines = re.findall(r"(?<![\w.])[abc](?!\w)", chart.split("loss of")[-1])
        assert {"a", "b", "c"} <= set(lines), chart


async def test_keys_change_axis_scale_and_smoothing(tmp_path: Path) -> None:
    _sweep(tmp_path)
    async with kit.home(tmp_path, size=(120, 35)) as (app, pilot):
        await _opened(app, pilot, 2)
        assert "by step" in screen_text(app) and "400" in screen_text(app)
        await press(pilot, "b", "l", "m", shows="by time · log · smooth")
        assert "10:00" in screen_text(app)
        await press(pilot, "q", shows="[1] Runs")


async def test_a_value_that_differs_in_one_run_is_shown_for_all(tmp_path: Path) -> None:
    _sweep(tmp_path, ("1e-4", "1e-4", "1e-3"))
    async with kit.home(tmp_path, size=(120, 35)) as (app, pilot):
        await _opened(app, pilot, 3)
        assert re.search(r"job.args +a --lr 1e-4  b --lr 1e-4  c --lr 1e-3", screen_text(app)), screen_text(app)


def test_steps_that_were_trained_twice_count_once(tmp_path: Path) -> None:
    place = kit.add_run(tmp_path, "vit-0abc", {"ada": 1}, ago=100, end="finished")
    for attempt, steps in ((1, (1, 2, 3, 4)), (2, (3, 4, 5))):
        folder = place / "0" / f"attempt-{attempt}"
        folder.mkdir(parents=True, exist_ok=True)
        records = ({"t": kit.NOW + 10 * attempt + step, "step": step, "loss": attempt + step / 10} for step in steps)
        (folder / "rank-0.metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records) + "{torn")
    curve = curve_of(load_run(place))
    assert (curve.steps, curve.values) == ((1, 2, 3, 4, 5), (1.1, 1.2, 2.3, 2.4, 2.5))
    assert (curve.at(0), curve.at(3), curve.at(99)) == (None, 2.3, 2.5)
