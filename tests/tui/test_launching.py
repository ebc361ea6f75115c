"""From a profile to the dashboard of its run: one switch, and no start by a key that nobody meant."""

from __future__ import annotations

import json
import sys
import threading
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import pytest
from textual import events
from textual.screen import Screen

from disttui.runner.api.library import ReadProfile
from disttui.runner.profile.leaks import hidden
from disttui.runner.runs.registry import known_runs
from disttui.tui.app import DisttuiApp
from disttui.tui.dashboard.screen import DashboardScreen
from disttui.tui.replay.screen import ReplayScreen
from disttui.tui.router import First, Router, screen_class
from disttui.tui.wizard import WizardScreen
from disttui.tui.wizard.draft import HostCheck
from tests.light import light_python
from tests.tui import shelf_kit as kit
from tests.tui.frames import Filmed, painted
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import HOSTS, record, start, wizard


def _profile(folder: Path) -> Path:
    text = f"disttui: 1\nname: quick\nhosts: [local]\nnum_processes: 1\npython: {light_python(folder / 'light')}\n"
    return kit.add_profile(folder, "quick", f"{text}job: {{command: [sleep, '2']}}\n")


@pytest.mark.slow
@pytest.mark.parametrize("hurry", [True, False], ids=["run on home", "launch in the wizard"])
async def test_no_other_screen_flashes_before_the_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurry: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # its run directories are there
    profile = _profile(tmp_path)
    app = Filmed(kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "[2] Profiles · " in screen_text(app))
        await pilot.pause(0.5)
        app.frames.clear()
        app.router.open_wizard(profile, launch=hurry)
        if not hurry:
            await until(pilot, lambda: "✓ enter starts 1 process on 1 host" in screen_text(app), 120)
            wizard = app.screen
            assert isinstance(wizard, WizardScreen)
            app.frames.clear()
            await start(pilot, wizard)
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen) and app.screen.snapshot, 120)
        await until(pilot, lambda: "finished" in screen_text(app), 120)
    (run,), _ = known_runs(kit.environ(tmp_path))
    assert run.source == str(profile)
    (origin,) = tmp_path.glob("data/disttui/runs/*/provenance.json")
    assert json.loads(origin.read_text())["command"] == list(map(hidden, sys.argv)), "what started the app"
    shown = [name for name, _ in groupby(name for name in app.screens() if name != "ConfirmScreen")]
    expected = ["WizardScreen", "DashboardScreen"]
    assert shown in (expected, ["HomeScreen", *expected]), "the home may be painted until the wizard is there"
    for frame in app.frames:
        if frame.screen == "WizardScreen" and hurry:
            assert "[2] Profiles · " in frame.text, frame.text
            assert "Check & save" not in frame.text
        elif frame.screen == "DashboardScreen":
            hosts = frame.text.replace("step unknown", "")
            assert "unknown" not in hosts and "not seen" not in hosts, frame.text


async def test_a_blocked_start_is_shown_and_does_not_happen_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, HOSTS)
    profile = kit.add_profile(tmp_path, "dead", "disttui: 1\nhosts: [gpu1, down]\njob: {builtin: bytegpt}\n")
    launched: list[Any] = []
    monkeypatch.setattr(WizardScreen, "_launch", lambda *launch: launched.append(launch))
    monkeypatch.setattr(Router, "open_run", lambda *_, **__: None)
    app = DisttuiApp(kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=(100, 30)) as pilot:
        app.router.open_wizard(profile, launch=True)
        await until(pilot, lambda: "refuses the connection" in screen_text(app))
        wizard = app.screen
        assert isinstance(wizard, WizardScreen) and "5 Check & save" in screen_text(app)
        wizard._set(HostCheck("down", "ready", HOSTS["gpu1"]))  # type: ignore[arg-type]
        wizard._show()
        await until(pilot, lambda: "✓ enter starts" in screen_text(app))
        await pilot.pause()
    assert not launched


async def test_pending_hosts_over_home_lead_to_checks_or_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, HOSTS)
    profile = kit.add_profile(tmp_path, "slow", "disttui: 1\nhosts: [gpu1, silent]\njob: {builtin: bytegpt}\n")
    app = DisttuiApp(kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "[2] Profiles · " in screen_text(app))
        for way in (["escape"], "#starting-leave"):
            app.router.open_wizard(profile, launch=True)
            await until(pilot, lambda: "◌ connecting silent" in screen_text(app))
            assert "Starting slow" in painted(app) and "[3] Hosts · 3" in painted(app)
            await (pilot.click(way) if isinstance(way, str) else pilot.press(*way))
            await until(pilot, lambda: not isinstance(app.screen, WizardScreen))
        for way in (["enter"], "#starting-checks"):
            app.router.open_wizard(profile, launch=True)
            await until(pilot, lambda: "◌ connecting silent" in screen_text(app))
            await (pilot.click(way) if isinstance(way, str) else pilot.press(*way))
            await until(pilot, lambda: "5 Check & save" in screen_text(app))
            assert "Starting slow" not in screen_text(app)
            app.pop_screen()
            await pilot.pause()


async def test_enter_alone_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question names what would be started, and its safe answer has the focus."""
    record(monkeypatch, HOSTS)
    started: list[Any] = []
    monkeypatch.setattr(WizardScreen, "_launch", lambda *launch: started.append(launch))
    monkeypatch.setattr(Router, "open_run", lambda *_, **__: None)
    profile = kit.add_profile(tmp_path, "pair", "disttui: 1\nhosts: [gpu1]\njob: {builtin: bytegpt}\n")
    async with wizard(tmp_path, profile=profile) as (pilot, opened):
        await until(pilot, lambda: "✓ enter starts 8 processes on 1 host" in screen_text(pilot.app))
        for _ in range(3):
            await kit.asked(pilot, "enter")
            assert "Start 8 processes on 1 host?" in screen_text(pilot.app)
            assert "gpu1 8 = 8 processes" in screen_text(pilot.app)
            await press(pilot, "enter", then=lambda: pilot.app.screen is opened)
        app = cast(DisttuiApp, pilot.app)
        for _ in range(8):  # typed ahead
            await app.on_event(events.Key("enter", None))
        await until(pilot, lambda: not app._keys._ahead and not app._keys._handling)
        assert not started
        if app.screen is not opened:
            await kit.asked(pilot)
            await press(pilot, "n", then=lambda: app.screen is opened)
        await start(pilot, opened)
        await until(pilot, lambda: started)


async def test_a_second_enter_while_a_profile_opens_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = WizardScreen._open

    def typed_before(self: WizardScreen, found: ReadProfile) -> None:
        self.action_on()
        opening(self, found)

    monkeypatch.setattr(WizardScreen, "_open", typed_before)
    app = DisttuiApp(kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none"))
    profile = _profile(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await kit.at_home(pilot)
        app.router.open_wizard(profile)
        await until(pilot, lambda: "step 5 of 5" in screen_text(app))


async def test_home_is_not_painted_before_a_first_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home_read = threading.Event()

    def import_slowly(kind: str) -> type[Screen[Any]]:
        if kind == "replay":
            assert home_read.wait(60)
        return cast("type[Screen[Any]]", screen_class(kind))

    monkeypatch.setattr("disttui.tui.router.screen_class", import_slowly)
    environ = kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none")
    app = Filmed(environ, first=First("replay", ("example",)))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.inventory.profiles)
        await pilot.pause()
        home_read.set()
        await until(pilot, lambda: isinstance(app.screen, ReplayScreen) and app.screen.snapshot)
        assert not any("Profiles" in frame.text for frame in app.frames)
        app.pop_screen()
        await until(pilot, lambda: "[2] Profiles" in screen_text(app))
