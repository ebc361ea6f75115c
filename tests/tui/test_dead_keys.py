"""Every key that the footer shows does something that can be seen, on every screen and in every state of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from disttui.tui.app import DisttuiApp
from disttui.tui.load.feed import TopChanged
from disttui.tui.widgets.bars import FooterBar
from disttui.tui.wizard import WizardScreen
from disttui.tui.wizard.processes import ValueTable
from tests.tui import shelf_kit as kit
from tests.tui import top_kit
from tests.tui.frames import painted
from tests.tui.wizard_kit import HOSTS, record, walk, wizard

PATIENCE = 5.0
"""Seconds after which a key counts as dead."""


def _shown(app: DisttuiApp) -> dict[str, str]:
    """Key → label, of what the footer offers here."""
    hints = app.screen.query_one(FooterBar)._hints()
    return {hint.key: hint.label for hint in hints if not hint.everywhere}


def _seen(app: DisttuiApp) -> tuple[Any, ...]:
    stack = [id(screen) for screen in app.screen_stack]
    whole = app.screen._compositor.size == app.size
    return painted(app) if whole else "", stack, id(app.focused), len(app._notifications), getattr(app, "opened", [])[:]


async def _dead(pilot: Pilot[None], app: DisttuiApp, again: Callable[[], object]) -> list[str]:
    """Press every key that is shown; those after which nothing is as before are alive."""
    base, found, tried = app.screen, [], set[str]()
    while left := {key: label for key, label in _shown(app).items() if key not in tried}:
        key, label = next(iter(left.items()))
        tried.add(key)
        before, deadline = _seen(app), time.monotonic() + PATIENCE
        await pilot.press(key)
        while (dead := _seen(app) == before) and time.monotonic() < deadline:
            await pilot.pause(0.02)
        if dead:
            found.append(f"{key} {label}")
        while app.screen is not base and base in app.screen_stack:
            app.pop_screen()
            await pilot.pause()
        again()
        await pilot.pause()
    assert tried
    return found


@pytest.mark.parametrize("read_only", [False, True], ids=["", "read-only"])
async def test_home_shows_no_dead_key(tmp_path: Path, read_only: bool) -> None:
    kit.busy_machine(tmp_path)
    rows = ("pair-7f3a",) if read_only else ("pair-7f3a", "pair-91bd", "profiles", "hosts")
    async with kit.home(tmp_path, read_only=read_only) as (app, pilot):
        home: Any = app.screen

        def at(row: str) -> None:
            home.action_clear()
            home.action_show_pane(row if row in ("profiles", "hosts") else "runs")
            home.query_one("#runs").select(row)

        for row in rows:
            at(row)
            await pilot.pause()
            assert not await _dead(pilot, app, partial(at, row)), row


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
async def test_the_wizard_shows_no_dead_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    record(monkeypatch, HOSTS)
    probed: list[str] = []
    answer = WizardScreen._start

    def ask(self: WizardScreen, name: str) -> None:
        probed.append(name)  # a recorded host answers at once: that it was asked again cannot be seen
        answer(self, name)

    monkeypatch.setattr(WizardScreen, "_start", ask)
    async with wizard(tmp_path, size=(120, 40)) as (pilot, opened):
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        app.opened = probed  # type: ignore[attr-defined]
        await walk(pilot, opened, ["desk"], step)
        if step == 1:
            opened.query_one("#hosts-table").focus()
            await pilot.pause()
        focused = app.focused
        assert focused is not None

        def again() -> None:
            opened._go(step - 1)
            focused.focus()

        assert not await _dead(pilot, app, again)


async def test_whole_run_values_set_elsewhere_show_no_dead_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, HOSTS)
    async with wizard(tmp_path, size=(120, 40)) as (pilot, opened):
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        await walk(pilot, opened, ["desk"], 3)

        def at(row: str) -> None:
            opened._go(2)
            table = opened.query_one("#whole-run", ValueTable)
            table.focus()
            table.select(row)

        for row in ("total", "master"):
            at(row)
            await pilot.pause()
            assert not await _dead(pilot, app, partial(at, row)), row


@pytest.mark.slow
@pytest.mark.parametrize("pane", ["hosts", "chart0", "log"])
async def test_the_replay_of_an_ended_run_shows_no_dead_key(tmp_path: Path, pane: str) -> None:
    async with kit.replayed(tmp_path, (160, 45)) as (app, pilot, screen):
        await pilot.press("less_than_sign")
        screen.go_to(pane)
        await pilot.pause()
        assert not await _dead(pilot, app, partial(screen.go_to, pane))


class Watched:
    """Notes what it is asked to do with hosts, which cannot be seen on made-up ones."""

    def __init__(self, asked: list[str]) -> None:
        self.leave, self._asked = asked.append, asked

    def retry(self) -> None:
        """Reach for hosts again."""
        self._asked.append("retry")

    def close(self) -> None:
        """Nothing runs."""


async def test_top_on_hosts_without_gpus_shows_no_dead_key(tmp_path: Path) -> None:
    app = DisttuiApp(kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=(120, 36)) as pilot:
        screen = top_kit.MadeUpTop()
        await app.push_screen(screen)
        asked: list[str] = []
        app.opened = asked  # type: ignore[attr-defined]
        assert screen._feed is not None
        screen._feed.watch = Watched(asked)  # type: ignore[assignment]
        screen.post_message(TopChanged(top_kit.hosts(2, 0, top_kit.NOW), top_kit.NOW))
        await pilot.pause()
        assert not await _dead(pilot, app, lambda: screen.narrow(""))
