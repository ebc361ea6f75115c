"""One import package, whatever the current folder and PYTHONPATH hold."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import disttui
from tests.command import ran


@pytest.mark.parametrize(
    "words", [["-m", "disttui", "--version"], ["-c", "import disttui; print(disttui.run.__module__)"]]
)
def test_folders_called_runner_and_tui_are_not_imported(words: list[str], tmp_path: Path) -> None:
    for name in ("runner", "tui"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('somebody else')\n")
    env = {**os.environ, "PYTHONPATH": f".:{Path(disttui.__file__).parents[1]}"}
    done = ran([sys.executable, *words], cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert disttui.__version__ in done.stdout or "disttui.runner.api.running" in done.stdout


def test_no_module_is_imported_past_the_package() -> None:
    for folder in ("runner", "tui"):
        for path in (Path(disttui.__file__).parents[1] / folder).rglob("*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                assert not line.strip().startswith(("from runner", "import runner", "from tui", "import tui")), path
