"""Renders screens to docs/img: `python -m tests.tui.pictures [NAME...]`. No picture is drawn by hand.

Runs are the recorded example or made up, hosts are made up or recorded probes. `--look FOLDER` writes every screen, at
five sizes, in both themes and as PNG too, to look at while working; that needs rsvg-convert (Debian: librsvg2-bin).
"""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
from textual.pilot import Pilot

from tests.tui import shelf_kit as kit
from tests.tui import top_kit
from tests.tui.snap import until
from tests.tui.wizard_kit import HOSTS, called, record, walk
from tui.app import DisttuiApp
from tui.dialogs.prompts import AppPrompts
from tui.dialogs.question import Question
from tui.top.feed import TopChanged
from tui.wizard import WizardScreen
from tui.wizard.reach import apart

FOLDER = Path(__file__).parents[2] / "docs" / "img"
_CELL = 12.2
_INDENTED = re.compile(r'x="([\d.]+)"( y="[\d.]+" )textLength="([\d.]+)"([^>]*)>((?:&#160;)+)')
_KEY = ("ssh-ed25519", "SHA256:4mA3rvvJq0H7vI3bhoP0wQqJcH6y6m3vLJxO9q2nMeo")
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that a viewer of the picture would have to fetch."""


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


def _nothing(folder: Path) -> None:
    folder.mkdir(exist_ok=True)


async def _top(pilot: Pilot[None]) -> None:
    screen = top_kit.MadeUpTop()
    await pilot.app.push_screen(screen)
    for second in range(90):
        screen.post_message(TopChanged(top_kit.hosts(2, 8, top_kit.NOW + second), top_kit.NOW + second))
        await pilot.pause()


async def _top_leased(pilot: Pilot[None]) -> None:
    screen = top_kit.MadeUpTop()
    await pilot.app.push_screen(screen)
    for second in range(90):
        screen.post_message(TopChanged(top_kit.leased(top_kit.NOW + second), top_kit.NOW + second))
        await pilot.pause()


def _replay(*keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def play(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        app.router.open_replay("example")
        await until(pilot, lambda: getattr(app.screen, "snapshot", None) and kit.shows(app, "lines"))
        await pilot.press("end", "less_than_sign", *keys)
        await pilot.pause(0.5)

    return play


def _wizard(step: int, hosts: Sequence[str] = ("gpu1", "gpu2"), *keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
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


def _asked(ask: Callable[[AppPrompts], object]) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def play(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        await _wizard(1, ["silent", "gpu1"])(pilot)
        apart(lambda: ask(app.prompts()))
        await called(pilot, Question)

    return play


SCENES = (
    Scene("home", (110, 32)),
    Scene("newcomer", (80, 24), prepare=_nothing),
    Scene("processes", (110, 32), act=_wizard(3)),
    Scene("check", (160, 44), act=_wizard(5)),
    Scene("dashboard", (160, 44), act=_replay()),
    Scene("log", (110, 32), act=_replay("slash", *"loss", "enter", "z")),
    Scene("top", (120, 36), act=_top),
)
"""What is kept in docs/img."""
OTHERS = (
    Scene("profile-error", (80, 24), ["2", "enter"]),
    Scene("confirm", (80, 24), ["x"]),
    Scene("help", (100, 30), ["question_mark"]),
    Scene("palette", (100, 30), ["ctrl+p", "p", "a"]),
    Scene("hosts-none", (80, 24), act=_wizard(1, [])),
    Scene("hosts", (80, 24), act=_wizard(1)),
    Scene("hosts-key-unknown", (80, 24), act=_asked(lambda prompts: prompts.accept_host_key("gpu1", *_KEY))),
    Scene("hosts-password", (80, 24), act=_asked(lambda prompts: prompts.secret("gpu1", "Password for ada: "))),
    Scene("hosts-down", (80, 24), act=_wizard(1, ["gpu1", "silent", "down", "changed"], "down", "j", "j")),
    Scene("hosts-silent", (80, 24), act=_wizard(1, ["gpu1", "silent", "down", "changed"], "down", "j")),
    Scene("hosts-changed", (80, 24), act=_wizard(1, ["gpu1", "silent", "down", "changed"], "down", "G", "k", "k")),
    Scene("hosts-leave", (80, 24), act=_wizard(1, ["gpu1"], "escape")),
    Scene("hardware", (80, 24), act=_wizard(2)),
    Scene("hardware-mixed", (80, 24), act=_wizard(2, ["gpu1", "gpu2", "desk", "down", "silent"], "j")),
    Scene("hardware-down", (80, 24), act=_wizard(2, ["gpu1", "gpu2", "desk", "down", "silent"], "j", "j", "j")),
    Scene("processes-cpu", (80, 24), act=_wizard(3, ["gpu1", "desk"], "tab", "j")),
    Scene("host-form", (80, 24), act=_wizard(3, ["gpu1", "gpu2"], "j", "e", "j", "space", "j")),
    Scene("host-form-8", (80, 24), act=_wizard(3, ["gpu1", "gpu2"], "e")),
    Scene("job", (80, 24), act=_wizard(4)),
    Scene(
        "job-script", (80, 24), act=_wizard(4, ["gpu1", "gpu2"], "right", "down", *"train.py", "down", "quotation_mark")
    ),
    Scene("check-profile", (80, 24), act=_wizard(5, ["gpu1", "gpu2"], "2")),
    Scene("check-commands", (80, 24), act=_wizard(5, ["gpu1", "gpu2"], "3")),
    Scene("check-errors", (80, 24), act=_wizard(5, ["gpu1", "desk"])),
    Scene("check-save", (80, 24), act=_wizard(5, ["gpu1", "gpu2"], "s")),
    Scene("top-leased", (120, 36), act=_top_leased),
    Scene("hardware-leased", (80, 24), act=_wizard(2, ["gpu3"])),
    Scene("check-leased", (80, 24), act=_wizard(5, ["gpu3"])),
    Scene("check-queued", (80, 24), act=_wizard(5, ["gpu3"], "w")),
    Scene("help-shell", (80, 24), ["question_mark", "slash", *"lease"]),
    Scene("dashboard-failed", (160, 44), act=_replay("E", "E", "E", "E")),
)
"""What is only looked at."""
LOOKED_AT = ((40, 12), (79, 24), (80, 24), (120, 35), (200, 50))
_THEMES = {"dark": {}, "light": {"COLORFGBG": "0;15"}}


def write(app: DisttuiApp, path: Path, png: bool = False) -> None:
    """Write the screen as it is to `path`.svg, and to `path`.png where that is wanted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not every renderer keeps blanks at the beginning of a text, so the text begins behind them.
    svg = _INDENTED.sub(_moved, _FONTS.sub("", app.export_screenshot(title="disttui")))
    svg = svg.replace("Fira Code", "DejaVu Sans Mono, Menlo")
    path.with_suffix(".svg").write_text(svg, encoding="utf-8")
    if png:
        command = ["rsvg-convert", "-z", "1.2", str(path.with_suffix(".svg")), "-o", str(path.with_suffix(".png"))]
        subprocess.run(command, check=True)


def _moved(match: re.Match[str]) -> str:
    by = len(match[5]) // len("&#160;") * _CELL
    return f'x="{float(match[1]) + by:.1f}"{match[2]}textLength="{float(match[3]) - by:.1f}"{match[4]}>'


async def render(scene: Scene, path: Path, png: bool = False) -> None:
    """Play a scene and write its picture."""
    with (
        tempfile.TemporaryDirectory() as home,
        patch("tui.home.screen.now", lambda: kit.NOW),
        patch("tui.home.screen.ask_hosts", lambda *_: {}),
    ):
        environ = kit.environ(Path(home), XDG_CACHE_HOME=f"{home}/cache", TEXTUAL_ANIMATIONS="none", **scene.environ)
        with patch.dict("os.environ", {**environ, "TZ": "UTC"}), pytest.MonkeyPatch.context() as patches:
            time.tzset()
            record(patches, HOSTS)
            scene.prepare(Path(home))
            app = DisttuiApp(environ)
            async with app.run_test(size=scene.size, notifications=True) as pilot:
                await kit.at_home(pilot)
                await pilot.press(*scene.keys)
                if scene.act:
                    await scene.act(pilot)
                await pilot.pause(0.3)
                write(app, path, png)


def main(words: Sequence[str]) -> None:
    """Render the scenes named, or all that are kept."""
    look = Path(words[1]) if words[:1] == ["--look"] else None
    names = words[2:] if look else words
    for scene in (*SCENES, *OTHERS) if look else SCENES:
        if names and scene.name not in names:
            continue
        if look is None:
            asyncio.run(render(scene, FOLDER / scene.name))
            print(FOLDER / f"{scene.name}.svg")
            continue
        for size, theme in itertools.product(LOOKED_AT, _THEMES):
            path = look / f"{scene.name}-{size[0]}x{size[1]}-{theme}"
            asyncio.run(render(scene._replace(size=size, environ=_THEMES[theme]), path, png=True))
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
