"""Text snapshots of the screen: what a person would read, line by line, kept as files beside the tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from textual._context import visible_screen_stack
from textual.app import App
from textual.pilot import Pilot

from tests.unit.waiting import Patience

FOLDER = Path(__file__).parent / "snapshots"
SIZES = ((80, 24), (100, 30), (160, 48), (40, 12))


def screen_text(app: App[Any]) -> str:
    """The characters on the screen, without colours; trailing blanks of each line dropped."""
    width, height = app.size
    visible_screen_stack.set(app._background_screens)  # what a screen lets through is drawn with it, and kept
    strips = app.screen._compositor.render_strips(app.size)
    assert len(strips) == height
    lines = [strip.crop(0, width).text.rstrip() for strip in strips]
    return "\n".join(lines) + "\n"


def is_drawn(app: App[Any]) -> bool:
    """Whether the screen is laid out; one that has just been opened shows nothing yet."""
    return app.screen._compositor.size == app.size


async def assert_snapshot(pilot: Pilot[None], name: str) -> None:
    """Wait until the screen looks like `snapshots/<name>.txt`; DISTTUI_SNAPSHOTS=write writes it."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get("DISTTUI_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(screen_text(pilot.app))
    expected, patience = snapshot(name), Patience(20.0)
    while screen_text(pilot.app) != expected and not patience.ended:  # what a thread finds may come later
        await asyncio.sleep(0.1)
    assert screen_text(pilot.app) == expected


def snapshot(name: str) -> str:
    """The text of `snapshots/<name>.txt`."""
    path = FOLDER / f"{name}.txt"
    assert path.exists(), f"there is no {path}: write it with DISTTUI_SNAPSHOTS=write, and look at it"
    return path.read_text()


async def assert_snapshots(pilot: Pilot[None], name: str, sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """Compare a screen at all sizes, to which its terminal is dragged, and back: `name` with `{}` for columns×rows."""
    before = pilot.app.size
    for width, height in sorted(sizes, key=lambda size: size != before):
        while pilot.app.size != (width, height):  # Textual's pilot may lose an event of a size
            await pilot.resize_terminal(width, height)
            await pilot.pause(0.1)
        await until(pilot, lambda: True)
        await assert_snapshot(pilot, name.format(f"{width}x{height}"))
    await pilot.resize_terminal(*before)


async def until(pilot: Pilot[None], holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Let the app run until a condition holds and it is idle; a look costs CPU, so they come ever less often."""
    patience, wait = Patience(seconds), 0.02
    while not (is_drawn(pilot.app) and holds()):
        assert not patience.ended, "it does not happen\n" + screen_text(pilot.app)
        await asyncio.sleep(wait)
        wait = min(1.3 * wait, 0.2)
    await pilot.pause()


async def press(
    pilot: Pilot[None], *keys: str, shows: str | Sequence[str] = (), then: Callable[[], object] | None = None
) -> None:
    """Press keys, and wait until these words are on the screen, or a condition holds, and the app is idle."""
    await pilot.press(*keys)
    words = [shows] if isinstance(shows, str) else shows
    if then or words:
        await until(pilot, then or (lambda: all(word in screen_text(pilot.app) for word in words)))
    else:
        await pilot.pause()
