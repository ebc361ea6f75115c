"""Renders screens to docs/img: `python -m tests.tui.pictures [NAME...]`. No picture is drawn by hand.

Runs are the recorded example or made up, hosts are made up or recorded probes. `--look FOLDER [NAME...]`
writes every screen, at five sizes, in both themes and as PNG too, to look at while working; --sizes 80x24,200x50 and
--themes dark choose some. That needs rsvg-convert (Debian: librsvg2-bin).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from disttui.tui.app import DisttuiApp
from tests.tui import shelf_kit as kit
from tests.tui.scenes import Scene, dashboard, home, hosts, in_replay, in_top, in_wizard, nothing, wizard
from tests.tui.wizard_kit import HOSTS, record
from tests.unit.waiting import Patience

FOLDER = Path(__file__).parents[2] / "docs" / "img"
_CELL = 12.2
_INDENTED = re.compile(r'x="([\d.]+)"( y="[\d.]+" )textLength="([\d.]+)"([^>]*)>((?:&#160;)+)')
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that a viewer of the picture would have to fetch."""


SCENES = (
    Scene("home", (120, 35), act=home.watched),
    Scene("newcomer", (120, 35), prepare=nothing),
    Scene("processes", (110, 32), act=in_wizard(3)),
    Scene("check", (120, 35), act=in_wizard(5)),
    Scene("dashboard", (160, 44), act=in_replay()),
    Scene("log", (120, 35), act=in_replay("slash", *"loss", "enter", "z")),
    Scene("top", (120, 35), act=in_top(hosts(2, 8))),
)
"""What is kept in docs/img."""
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


async def render(scene: Scene, path: Path, png: bool = False, like: str | None = None) -> None:
    """Play a scene and write its picture, as soon as it is `like` one or after a minute."""
    with (
        tempfile.TemporaryDirectory() as place,
        patch("disttui.tui.home.screen.now", lambda: kit.NOW),
        patch("disttui.tui.home.screen.ask_hosts", lambda *_: {}),
        patch("disttui.tui.home.screen.TopFeed", kit.Silent),
    ):
        environ = kit.environ(Path(place), XDG_CACHE_HOME=f"{place}/cache", TEXTUAL_ANIMATIONS="none", **scene.environ)
        with patch.dict("os.environ", {**environ, "TZ": "UTC"}), pytest.MonkeyPatch.context() as patches:
            time.tzset()
            record(patches, HOSTS)
            scene.prepare(Path(place))
            app = DisttuiApp(environ)
            async with app.run_test(size=scene.size, notifications=True) as pilot:
                await kit.at_home(pilot)
                await pilot.press(*scene.keys)
                if scene.act:
                    await scene.act(pilot)
                patience = Patience(60)
                while True:
                    await pilot.pause(0.3)
                    write(app, path, png)
                    if like in (None, path.with_suffix(".svg").read_text(encoding="utf-8")) or patience.ended:
                        break


def main(words: Sequence[str]) -> None:
    """Render the scenes named, or all that are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--look", type=Path, metavar="FOLDER")
    parser.add_argument("--sizes", type=_sizes, default=LOOKED_AT)
    parser.add_argument("--themes", type=lambda text: text.split(","), default=list(_THEMES))
    asked = parser.parse_args(words)
    every = (*SCENES, *home.SCENES, *wizard.SCENES, *dashboard.SCENES) if asked.look else SCENES
    for scene in every:
        if asked.names and scene.name not in asked.names:
            continue
        if asked.look is None:
            asyncio.run(render(scene, FOLDER / scene.name))
            print(FOLDER / f"{scene.name}.svg")
            continue
        for size, theme in itertools.product(asked.sizes, asked.themes):
            path = asked.look / f"{scene.name}-{size[0]}x{size[1]}-{theme}"
            asyncio.run(render(scene._replace(size=size, environ={**scene.environ, **_THEMES[theme]}), path, png=True))
            print(path)


def _sizes(text: str) -> list[tuple[int, int]]:
    return [(int(size.split("x")[0]), int(size.split("x")[1])) for size in text.split(",")]


if __name__ == "__main__":
    main(sys.argv[1:])
