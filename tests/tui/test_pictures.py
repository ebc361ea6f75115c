"""docs/img: every picture shows the app as it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.tui.pictures import FOLDER, SCENES, render
from tests.tui.scenes import Scene


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_picture_shows_the_app_as_it_is(scene: Scene, tmp_path: Path) -> None:
    kept = (FOLDER / f"{scene.name}.svg").read_text(encoding="utf-8")
    asyncio.run(render(scene, tmp_path / scene.name, like=kept))
    drawn = (tmp_path / f"{scene.name}.svg").read_text(encoding="utf-8")
    different = sum(one != other for one, other in zip(drawn.splitlines(), kept.splitlines(), strict=False))
    assert drawn == kept, f"{different} lines differ; python -m tests.tui.pictures {scene.name} draws it anew"


def test_every_picture_is_drawn_and_shown() -> None:
    texts = [
        path.read_text(encoding="utf-8") for path in (FOLDER.parents[1] / "README.md", *FOLDER.parent.glob("*.md"))
    ]
    shown = {path.stem for path in FOLDER.iterdir() if any(f"img/{path.name}" in text for text in texts)}
    assert {scene.name for scene in SCENES} == {path.stem for path in FOLDER.iterdir()} == shown
