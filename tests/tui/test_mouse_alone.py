"""Everything that the app can do is reached by the mouse alone, even on the smallest terminal; clicks wait in turn."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest
from textual import events
from textual.command import CommandPalette
from textual.pilot import Pilot

from disttui.runner.api.library import read_profile
from disttui.runner.runs.registry import known_runs
from disttui.tui.app import DisttuiApp, PaletteProvider
from disttui.tui.dashboard.screen import DashboardScreen
from disttui.tui.home.screen import HomeScreen
from disttui.tui.top.screen import TopScreen
from disttui.tui.widgets import bars
from disttui.tui.widgets.bars import FooterBar
from disttui.tui.widgets.filter_line import FilterLine
from disttui.tui.wizard import WizardScreen
from disttui.tui.wizard.check import CheckStep
from tests.light import light_python
from tests.tui import shelf_kit as kit
from tests.tui.shelf_kit import asked, shows
from tests.tui.snap import press, screen_text, until
from tests.tui.test_mouse import click
from tests.tui.widget_kit import burst
from tests.tui.wizard_kit import HOSTS, record, start

SMALL = (40, 12)


async def choose(pilot: Pilot[None], title: str, words: str) -> None:
    """Open the palette by the footer, turn the wheel until an entry is in sight, and click on it."""
    await click(pilot, "^p", "FooterBar")
    await until(pilot, lambda: isinstance(pilot.app.screen, CommandPalette))
    for _ in range(60):
        await pilot.pause(0.05)
        lines = screen_text(pilot.app).splitlines()
        places = [
            row for row, (line, after) in enumerate(pairwise(lines))
            if line.strip() == title and after.strip().startswith(words)
        ]  # fmt: skip
        if places:
            await pilot.click(offset=(5, places[0]))
            await until(pilot, lambda: not isinstance(pilot.app.screen, CommandPalette))
            return
        await pilot._post_mouse_events([events.MouseScrollDown], offset=(10, 8), button=0)
    raise AssertionError(f"{title} is not in the palette\n{screen_text(pilot.app)}")


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_at_40x12_a_run_starts_stops_and_reruns_by_mouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # its run directories are there
    job = "job: {command: [sh, -c, 'test -e was && exit; touch was; sleep 300']}\n"
    head = f"disttui: 1\nname: quick\nhosts: [local]\nnum_processes: 1\npython: {light_python(tmp_path / 'light')}\n"
    kit.add_profile(tmp_path, "quick", head + job)
    app = DisttuiApp(kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=SMALL, notifications=True) as pilot:
        await until(pilot, lambda: shows(app, "[2] Profiles · "))  # which has the focus, as there are no runs
        await click(pilot, "[3] Hosts", "#tabs")
        await until(pilot, lambda: app.focused is not None and app.focused.id == "hosts")
        await click(pilot, "[2] Profiles", "#tabs")
        await click(pilot, "quick", "#profiles", times=2)
        await until(pilot, lambda: shows(app, "✓ enter starts 1 process"), 120)
        await click(pilot, "enter launch", "FooterBar")
        await asked(pilot)
        await click(pilot, "start y")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen) and shows(app, "● running"), 120)
        await until(pilot, (tmp_path / "was").exists, 120)
        await choose(pilot, "Stop", "s  stop the run")
        await asked(pilot)
        await click(pilot, "stop y")
        await until(pilot, lambda: shows(app, "■ stopped"), 120)
        await choose(pilot, "Rerun", "r  rerun it")
        await asked(pilot)
        await click(pilot, "enter start")
        await until(pilot, lambda: shows(app, "✓ finished"), 120)
        await until(pilot, lambda: shows(app, "q back"))
        await click(pilot, "q back", "FooterBar")
        await until(pilot, lambda: isinstance(app.screen, HomeScreen))
        await click(pilot, "[1] Runs", "#tabs")
        await choose(pilot, "Filter", "/  show only matching rows")
        await until(pilot, lambda: app.screen.query_one(FilterLine).has_class("-on"))
        await click(pilot, "esc all rows", "FooterBar")
        await choose(pilot, "Details", "d  show details")
        await until(pilot, lambda: app.screen.has_class("-details"))
        await choose(pilot, "Top", "t  show the load")
        await until(pilot, lambda: isinstance(app.screen, TopScreen))
    assert len(known_runs(kit.environ(tmp_path))) == 2


@pytest.mark.parametrize("size", [SMALL, (60, 20), (80, 24)], ids=["40x12", "60x20", "80x24"])
async def test_palette_is_in_the_footer_and_lists_the_screens_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    record(monkeypatch, HOSTS)
    kit.busy_machine(tmp_path)
    one = kit.add_profile(tmp_path, "one", "disttui: 1\nhosts: [gpu1]\njob: {builtin: bytegpt}\n")
    async with kit.home(tmp_path, size=size, app=DisttuiApp(kit.environ(tmp_path))) as (app, pilot):

        def listed() -> set[str]:
            return {entry.title for entry in PaletteProvider(app.screen)._actions()}

        async def keys(*words: str) -> None:
            await until(pilot, lambda: all(word in screen_text(app).splitlines()[-1] for word in (*words, "^p")))

        await keys()
        assert listed() >= {"New", "Run", "Stop", "Top", "Details", "Filter", "Profiles", "Hosts", "Refresh", "Quit"}
        await pilot.press("slash")
        await keys("enter apply", "esc all rows")
        await pilot.press("escape")
        await press(pilot, "t", then=lambda: isinstance(app.screen, TopScreen))
        await keys()
        await press(pilot, "q", then=lambda: isinstance(app.screen, HomeScreen))
        app.router.open_wizard(one)
        await until(pilot, lambda: isinstance(app.screen, WizardScreen) and shows(app, "✓ enter starts"))
        await keys("enter launch")
        assert listed() >= {"Launch", "Save", "Copy", "Next pane", "Step 1: Hosts"}
        for _ in range(4):
            await pilot.press("escape")
            await keys()


async def test_footer_offers_no_launch_or_save_while_a_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, HOSTS)
    going_on = threading.Event()
    monkeypatch.setattr(WizardScreen, "_launch", lambda *_: going_on.wait(60) and "no-such-run")
    profile = kit.add_profile(tmp_path, "one", "disttui: 1\nhosts: [gpu1]\njob: {builtin: bytegpt}\n")
    read = read_profile(str(profile), check_job=False, environ=kit.environ(tmp_path))
    app = DisttuiApp(kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=(80, 24)) as pilot:
        monkeypatch.setattr(app.router, "open_run", lambda *_, **__: None)
        app.push_screen(WizardScreen(read))
        await until(pilot, lambda: isinstance(app.screen, WizardScreen) and shows(app, "enter launch"))
        opened = app.screen
        assert isinstance(opened, WizardScreen)
        await start(pilot, opened)
        await until(pilot, lambda: opened.query_one(CheckStep).busy and shows(app, "◌ starting"))
        await until(pilot, lambda: not shows(app, "enter launch") and not shows(app, "s save"))
        going_on.set()


async def test_the_find_line_of_the_log_says_what_enter_does(tmp_path: Path) -> None:
    async with kit.replayed(tmp_path, SMALL) as (_, pilot, _):
        for key in ("slash", "ampersand"):
            await press(pilot, key, shows="enter go  esc close")
            await pilot.press("escape")


async def test_mixed_clicks_and_keys_take_effect_in_order(tmp_path: Path) -> None:
    kit.busy_machine(tmp_path)

    def at(app: DisttuiApp, text: str) -> tuple[int, int]:
        lines = screen_text(app).splitlines()
        row = max(row for row, line in enumerate(lines) if text in line)
        return lines[row].index(text), row

    def clicked(app: DisttuiApp, place: tuple[int, int]) -> None:
        for kind in (events.MouseDown, events.MouseUp):
            app.post_message(kind(None, *place, 0, 0, 1, False, False, False, *place))

    async with kit.home(tmp_path) as (app, pilot):
        row = at(app, "llama-c3d4")
        burst(app, "slash", *"llama", "enter", "enter")
        await until(pilot, lambda: app.opened)
        assert app.opened.pop() == ("replay", "llama-c3d4")
        burst(app, "escape", "g")
        await until(pilot, lambda: shows(app, "pair-7f3a"))
        # The click is on a row, and comes behind the words that leave that row out.
        burst(app, "slash", *"pair", "enter")
        clicked(app, row)
        await until(pilot, lambda: shows(app, "[1] Runs · 4 of 6"))
        burst(app, "escape", "g")
        await until(pilot, lambda: shows(app, "llama-c3d4"))
        # The footer's key comes before what was typed behind the click.
        new = at(app, "/ filter")
        clicked(app, new)
        burst(app, *"llama", "enter", "enter")
        await until(pilot, lambda: app.opened)
        assert app.opened == [("replay", "llama-c3d4")]


async def test_a_click_just_after_the_footer_changes_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "CLICK_GUARD", 600.0)
    copied: list[str] = []
    monkeypatch.setattr(DisttuiApp, "copy", lambda _, text: copied.append(text))
    async with kit.replayed(tmp_path, (120, 35)) as (app, pilot, _):
        await press(pilot, "home", then=lambda: not shows(app, "y copy summary"))
        await pilot.press("end")
        await click(pilot, "y copy summary", "FooterBar")
        await pilot.pause()
        assert not copied
        app.screen.query_one(FooterBar)._guarded_until = 0.0
        await click(pilot, "y copy summary", "FooterBar")
        await until(pilot, lambda: copied)
