"""The key of the wizard that measures the hosts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.checking import Measured
from disttui.runner.planning.checks import Check, HostFigures
from disttui.runner.runs.following import RunControl
from tests.tui.shelf_kit import asked
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import facts, walked
from tests.unit.waiting import wait_for


async def test_m_measures_the_plan_and_shows_who_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles: list[Any] = []

    def measure(viewer: Any, profile: Any, tell: Any, **_: Any) -> Measured:
        profiles.append(profile)
        tell(Check("train.compute", "warning", ("desk\x1b[2J",), "computes at 1.0GFLOP/s", "every step waits", "Look"))
        return Measured((HostFigures("desk", "x", 1, 0.0, product=1e9),), "one host is faster: 1 s, 2 s")

    monkeypatch.setattr("disttui.tui.wizard.screen.measure", measure)
    async with walked(tmp_path, {"desk": facts("cpu_desk")}, 5, (120, 40)) as (pilot, _):
        await until(pilot, lambda: "enter starts" in screen_text(pilot.app))
        await press(pilot, "m", shows="Its ranks run a measurement")
        assert not profiles
        await asked(pilot)
        await press(pilot, "y", shows="one host is faster: 1 s, 2 s")
        assert "computes at 1.0GFLOP/s [train.compute]" in screen_text(pilot.app)
        assert "enter starts" in screen_text(pilot.app)
    assert [host.name for host in profiles[0].hosts] == ["desk"]


async def test_read_only_it_measures_nothing(tmp_path: Path) -> None:
    """A measurement is a run."""
    async with walked(tmp_path, {"desk": facts("cpu_desk")}, 5, (120, 40)) as (pilot, _):
        app: Any = pilot.app
        await until(pilot, lambda: "enter starts" in screen_text(app))
        app.read_only = True
        await pilot.press("m")
        await pilot.pause()
        assert not app.screen.is_modal
        await press(pilot, "d", shows="✓ ready: 8 processes on 1 host; read-only, so it cannot be started here")


async def test_quitting_stops_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def measure(viewer: Any, profile: Any, tell: Any, control: RunControl) -> Measured:
        wait_for(lambda: control.stops == 2, "the request to stop")
        stopped.set()
        return Measured(())

    monkeypatch.setattr("disttui.tui.wizard.screen.measure", measure)
    async with walked(tmp_path, {"desk": facts("cpu_desk")}, 5, (120, 40)) as (pilot, opened):
        await until(pilot, lambda: "enter starts" in screen_text(pilot.app))
        await asked(pilot, "m")
        await press(pilot, "y", shows="measuring")
        ends = opened.disttui.at_end
    assert not stopped.is_set()
    for end in ends:
        end()
    assert stopped.is_set()
