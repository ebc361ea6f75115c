"""The wizard while other things happen: discovery, a start."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from disttui.runner.hosts.discovery import Candidate, Discovered
from disttui.tui.dashboard.screen import DashboardScreen
from disttui.tui.dialogs.help import HelpScreen
from disttui.tui.home.screen import HomeScreen
from disttui.tui.wizard import WizardScreen, hosts_screen
from disttui.tui.wizard.hosts import HostTable
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import HOSTS, record, type_text, walked, wizard
from tests.tui.wizard_kit import start as begin


class Slow:
    """A function that answers when the test lets it."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.asked, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.asked.set()
        assert self.go_on.wait(60)
        return self._answer


async def test_what_is_being_typed_stays_in_its_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that are found meanwhile do not take the focus: `q` is a letter of a name."""
    record(monkeypatch, HOSTS)
    find = Slow([Discovered("ssh", (Candidate("gpu7", "ssh"),))])
    monkeypatch.setattr(hosts_screen, "find_all", find)
    async with wizard(tmp_path) as (pilot, opened):
        await until(pilot, find.asked.is_set)
        await type_text(pilot, "gp")
        find.go_on.set()
        await until(pilot, lambda: "gpu7" in screen_text(pilot.app))
        await type_text(pilot, "uq")
        assert opened.query_one("#names", Input).value == "gpuq"


async def test_down_goes_to_the_first_host_that_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of the ssh config come above `local`, which is listed before they are known."""
    record(monkeypatch, HOSTS)
    find = Slow([Discovered("ssh", (Candidate("gpu7", "ssh"), Candidate("gpu8", "ssh")))])
    monkeypatch.setattr(hosts_screen, "find_all", find)
    async with wizard(tmp_path) as (pilot, opened):
        await until(pilot, lambda: find.asked.is_set() and "local" in screen_text(pilot.app))
        find.go_on.set()
        await until(pilot, lambda: "gpu7" in screen_text(pilot.app))
        await press(pilot, "down", then=lambda: opened.query_one(HostTable).has_focus)
        assert opened.query_one(HostTable).key == "gpu7"


async def test_a_start_is_not_left_and_its_dashboard_waits_for_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Slow("demo-1a2b")
    monkeypatch.setattr(WizardScreen, "_launch", start)
    monkeypatch.setattr(DashboardScreen, "_follow", lambda _: None)
    async with walked(tmp_path, HOSTS, 5, names=["gpu1"]) as (pilot, opened):
        await begin(pilot, opened)
        await until(pilot, start.asked.is_set)
        await press(pilot, *["escape"] * 6, then=lambda: opened._at == 0)
        await press(pilot, "escape")
        assert pilot.app.screen_stack[-1] is opened, "it may be left before it has a run to show"
        await pilot.press("f1")
        start.go_on.set()
        await pilot.pause(0.5)
        assert isinstance(pilot.app.screen, HelpScreen) and pilot.app.screen_stack[-2] is opened
        await press(pilot, "escape", then=lambda: isinstance(pilot.app.screen, DashboardScreen))
        assert [type(screen) for screen in pilot.app.screen_stack] == [HomeScreen, DashboardScreen]
