"""Screens to look at: how each is reached, from made-up runs and recorded hosts; `tests.tui.pictures` draws them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from textual.pilot import Pilot

from disttui.runner.runs.watch import HostNow
from disttui.tui.app import DisttuiApp
from disttui.tui.dialogs.prompts import AppPrompts
from disttui.tui.dialogs.question import Question
from disttui.tui.load.feed import TopChanged
from disttui.tui.wizard import WizardScreen
from disttui.tui.wizard.hosts_screen import run_detached
from tests.tui import shelf_kit as kit
from tests.tui import top_kit
from tests.tui.snap import press, until
from tests.tui.wizard_kit import called, walk

KEY = ("ssh-ed25519", "SHA256:4mA3rvvJq0H7vI3bhoP0wQqJcH6y6m3vLJxO9q2nMeo")


class Scene(NamedTuple):
    """One picture."""

    name: str
    size: tuple[int, int]
    keys: Sequence[str] = ()
    prepare: Callable[[Path], object] = kit.busy_machine
    """Fills the user's folder."""
    environ: dict[str, str] = {}  # noqa: RUF012
    act: Callable[[Pilot[None]], Awaitable[None]] | None = None
    """What is done after the keys."""


def nothing(folder: Path) -> None:
    folder.mkdir(exist_ok=True)


def in_top(*states: Callable[[float], tuple[HostNow, ...]], keys: Sequence[str] = ()) -> Callable[..., Awaitable[None]]:
    """The screen `top` after 90 s of hosts in a state, the last of `states`."""

    async def play(pilot: Pilot[None]) -> None:
        screen = top_kit.MadeUpTop()
        await pilot.app.push_screen(screen)
        for second in range(90):
            at = top_kit.NOW + second
            screen.post_message(TopChanged(states[0 if second < 80 else -1](at), at))
            await pilot.pause()
        for key in keys:
            await press(pilot, key)

    return play


def hosts(count: int, gpus: int) -> Callable[[float], tuple[HostNow, ...]]:
    return lambda t: top_kit.hosts(count, gpus, t)


def in_replay(*keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def play(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        app.router.open_replay("example")
        await until(pilot, lambda: getattr(app.screen, "snapshot", None) and kit.shows(app, "lines"))
        await pilot.press("end", "less_than_sign", *keys)
        await pilot.pause(0.5)

    return play


def in_wizard(
    step: int, hosts: Sequence[str] = ("gpu1", "gpu2"), *keys: str
) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def play(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        app.router.open_wizard()
        await until(pilot, lambda: isinstance(app.screen, WizardScreen) and app.screen.is_mounted)
        await pilot.pause()
        assert isinstance(app.screen, WizardScreen)
        await walk(pilot, app.screen, hosts, step)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.05)

    return play


def question_asked(ask: Callable[[AppPrompts], object]) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def play(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        await in_wizard(1, ["silent", "gpu1"])(pilot)
        run_detached(lambda: ask(app.prompts()))
        await called(pilot, Question)

    return play
