"""Renders screens to docs/img: `python -m tests.tui.pictures [--png] [NAME...]`. No picture is drawn by hand.

SVG is kept with the project; PNG, to look at while working, needs rsvg-convert (Debian: librsvg2-bin).
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from textual.pilot import Pilot

from tests.tui import shelf_kit as kit
from tui.app import DisttuiApp

FOLDER = Path(__file__).parents[2] / "docs" / "img"
_CELL = 12.2
_INDENTED = re.compile(r'x="([\d.]+)"( y="[\d.]+" )textLength="([\d.]+)"([^>]*)>((?:&#160;)+)')
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


SCENES = (
    Scene("home", (100, 30)),
    Scene("home-80x24", (80, 24)),
    Scene("home-200x50", (200, 50)),
    Scene("home-light", (100, 30), environ={"COLORFGBG": "0;15"}),
    Scene("home-40x12", (40, 12)),
    Scene("newcomer", (80, 24), prepare=_nothing),
    Scene("profile-error", (80, 24), ["2", "enter"]),
    Scene("confirm", (80, 24), ["x"]),
    Scene("help", (100, 30), ["question_mark"]),
    Scene("palette", (100, 30), ["ctrl+p", "p", "a"]),
)


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


async def render(scene: Scene, png: bool = False) -> None:
    """Play a scene and write its picture."""
    with tempfile.TemporaryDirectory() as home, patch("tui.screens.home.now", lambda: kit.NOW):
        environ = kit.environ(Path(home), **scene.environ)
        with patch.dict("os.environ", environ):
            scene.prepare(Path(home))
            app = DisttuiApp(environ)
            async with app.run_test(size=scene.size, notifications=True) as pilot:
                await kit.at_home(pilot)
                await pilot.press(*scene.keys)
                if scene.act:
                    await scene.act(pilot)
                await pilot.pause(0.3)
                write(app, FOLDER / scene.name, png)


def main(names: Sequence[str]) -> None:
    """Render the scenes named, or all."""
    wanted = [name for name in names if name != "--png"]
    for scene in SCENES:
        if not wanted or scene.name in wanted:
            asyncio.run(render(scene, "--png" in names))
            print(FOLDER / f"{scene.name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
