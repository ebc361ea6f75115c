"""Text snapshots of the screen: what a person would read, line by line, kept as files beside the tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from textual.app import App

FOLDER = Path(__file__).parent / "snapshots"
SIZES = ((80, 24), (100, 30), (160, 48), (40, 12))


def screen_text(app: App[Any]) -> str:
    """The characters on the screen, without colours; trailing blanks of each line dropped."""
    width, height = app.size
    strips = app.screen._compositor.render_strips(app.size)
    assert len(strips) == height
    lines = [strip.crop(0, width).text.rstrip() for strip in strips]
    return "\n".join(lines) + "\n"


def assert_snapshot(app: App[Any], name: str) -> None:
    """Compare the screen with `snapshots/<name>.txt`; DISTTUI_SNAPSHOTS=write writes it."""
    path = FOLDER / f"{name}.txt"
    shown = screen_text(app)
    if os.environ.get("DISTTUI_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    assert path.exists(), f"there is no {path}: write it with DISTTUI_SNAPSHOTS=write, and look at it"
    assert shown == path.read_text()
