"""A terminal that is dragged through all sizes: no screen breaks, and each is as before when it has room again."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from textual.pilot import Pilot

from disttui.tui.app import DisttuiApp
from disttui.tui.dialogs.prompts import PickScreen, SecretScreen
from disttui.tui.load.feed import TopChanged
from disttui.tui.screen import DisttuiScreen
from disttui.tui.wizard import WizardScreen
from tests.tui import shelf_kit as kit
from tests.tui import top_kit
from tests.tui.snap import screen_text, until
from tests.tui.wizard_kit import facts, record, walk

FULL = (100, 30)
STORM = ((1, 1), (39, 11), (40, 12), (300, 100), (2, 60), (200, 1), (39, 12), (40, 11), (80, 24), (12, 3), (160, 48))
Player = Pilot[None]
Open = Callable[[DisttuiApp, Player], Awaitable[None]]


async def _home(app: DisttuiApp, pilot: Player) -> None:
    await pilot.press("d")


def _pressed(*keys: str) -> Open:
    async def play(app: DisttuiApp, pilot: Player) -> None:
        await pilot.press(*keys)
        await pilot.pause(0.2)

    return play


def _replayed(*keys: str) -> Open:
    async def play(app: DisttuiApp, pilot: Player) -> None:
        app.router.open_replay("example")
        await until(pilot, lambda: getattr(app.screen, "snapshot", None) and kit.shows(app, "lines"))
        await pilot.press("end", *keys)
        await pilot.pause(0.2)

    return play


async def _top(app: DisttuiApp, pilot: Player) -> None:
    screen = top_kit.MadeUpTop()
    await app.push_screen(screen)
    screen.post_message(TopChanged(top_kit.troubled() + top_kit.hosts(3, 8), top_kit.NOW))
    await until(pilot, lambda: kit.shows(app, "madeup0"))


def _wizard(step: int, *keys: str) -> Open:
    async def play(app: DisttuiApp, pilot: Player) -> None:
        app.router.open_wizard()
        await until(pilot, lambda: isinstance(app.screen, WizardScreen) and app.screen.is_mounted)
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, WizardScreen)
        await walk(pilot, screen, ["node1", "node2"], step)
        await pilot.press(*keys)
        await pilot.pause(0.2)

    return play


async def _secret(app: DisttuiApp, pilot: Player) -> None:
    app.push_screen(SecretScreen("node1", "password of alice"))
    await pilot.pause(0.2)


async def _pick(app: DisttuiApp, pilot: Player) -> None:
    app.push_screen(PickScreen("Show", [(str(number), f"metric {number}") for number in range(40)], "3"))
    await pilot.pause(0.2)


SCREENS: dict[str, Open] = {
    "home": _home, "filter": _pressed("slash", "p"), "help": _pressed("question_mark"), "palette": _pressed("ctrl+p"),
    "confirm": _pressed("x"), "error": _pressed("2", "enter"), "top": _top, "secret": _secret, "pick": _pick,
    "replay": _replayed(), "zoomed ranks": _replayed("z"), "zoomed chart": _replayed("tab", "tab", "z"),
    "log": _replayed("shift+tab", "z"), "find": _replayed("slash", "l", "o", "s", "s", "enter"),
    **{f"step {step}": _wizard(step) for step in range(1, 6)}, "save": _wizard(5, "s"),
}  # fmt: skip


_QUICK = ("home", "log", "step 3", "zoomed chart")
"""One of each kind, for `make check`."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in _QUICK else pytest.mark.slow) for n in SCREENS])
async def test_a_storm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    record(monkeypatch, {"node1": facts("cpu_desk"), "node2": facts("cpu_desk", boot_id="other")})
    kit.busy_machine(tmp_path)
    chance = random.Random(name)
    sizes = [*STORM, *((chance.randint(1, 220), chance.randint(1, 70)) for _ in range(8))]
    with patch("disttui.tui.home.screen.now", lambda: kit.NOW):
        environ = kit.environ(tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"), TEXTUAL_ANIMATIONS="none")
        app = DisttuiApp(environ)
        async with app.run_test(size=FULL) as pilot:
            await kit.at_home(pilot)
            await SCREENS[name](app, pilot)
            shown = app.screen
            focused = shown.focused
            for width, height in sizes:
                await pilot.resize_terminal(width, height)
                await pilot.pause()
                text = screen_text(app)
                small = width < 40 or height < 12
                if isinstance(shown, DisttuiScreen) and width >= 20 and height >= 3:
                    assert ("terminal too small" in text) == small, f"{width}×{height}\n{text}"
                    assert not small or ("needs 40×12" in text and f"has {width}×{height}" in text)
            await pilot.resize_terminal(*FULL)
            await pilot.pause(0.2)
            assert app.screen is shown
            assert shown.focused is focused
            assert "terminal too small" not in screen_text(app)


@pytest.mark.parametrize("rows", [12, 24, 48])
async def test_a_dialog_has_its_place_from_its_first_frame_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    seen: list[list[str]] = []

    def noted(layout: Callable[..., None]) -> Callable[..., None]:
        def note(screen: PickScreen, *arguments: Any, **named: Any) -> None:
            sized = (*DisttuiScreen.HORIZONTAL_BREAKPOINTS, *DisttuiScreen.VERTICAL_BREAKPOINTS)
            seen.append(sorted({name for _, name in sized} & screen.classes))
            layout(screen, *arguments, **named)

        return note

    async with kit.home(tmp_path, size=(100, rows)) as (app, pilot):
        monkeypatch.setattr(PickScreen, "_refresh_layout", noted(PickScreen._refresh_layout))
        app.push_screen(PickScreen("Show", [("a", "first"), ("b", "second")], "a"))
        await until(pilot, lambda: kit.shows(app, "second"))
        await pilot.pause()
        assert seen and all(sorted(one) == seen[-1] and len(one) == 2 for one in seen), seen
