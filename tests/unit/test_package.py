"""One import package, whatever the current folder and PYTHONPATH hold, and locks of all that it needs."""

from __future__ import annotations

import os
import re
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


_ROOT = Path(__file__).parents[2]
_LOCKS = (Path("requirements.lock"), Path(".ci/dev.lock"))
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; (.*?))? \\$")


def pins(lock: Path) -> dict[str, list[tuple[str, str, int]]]:
    """By package: its versions, each with its marker and the number of its hashes."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    for block in re.split(r"\n(?=[A-Za-z])", (_ROOT / lock).read_text()):
        first = block.strip().splitlines()[0] if block.strip() else "#"
        if not first.startswith("#"):
            match = _PIN.match(first)
            assert match, f"{lock}: {first}"
            hashes = len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", block))
            found.setdefault(name(match[1]), []).append((match[2], match[3] or "", hashes))
    return found


def name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def constraints() -> dict[str, str]:
    lines = (_ROOT / ".ci/constraints.txt").read_text().splitlines()
    pairs = [line.partition(";")[0].strip().partition("==") for line in lines if "==" in line]
    return {name(package): version for package, _, version in pairs}


@pytest.mark.parametrize("lock", _LOCKS, ids=str)
def test_the_lock_agrees_with_the_constraints(lock: Path) -> None:
    """On the newest Python; older ones may need older versions (`make lock` writes it anew)."""
    wanted = constraints()
    for package, versions in pins(lock).items():
        now = [version for version, marker, _ in versions if "< '3.11'" not in marker and "win32" not in marker]
        assert now in ([], [wanted.get(package)]), f"{package}: run `make lock`"
        assert all(count for *_, count in versions), f"{package} has no hash"


def test_everything_that_is_needed_is_locked() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    wanted = {name(re.split(r"[<>=!~ ;\[]", each)[0]) for each in project["dependencies"]}
    developers = {name(re.split(r"[<>=!~ ;\[]", each)[0]) for each in project["optional-dependencies"]["dev"]}
    assert wanted <= set(pins(_LOCKS[0]))
    assert wanted | developers <= set(pins(_LOCKS[1]))


@pytest.mark.parametrize("lock", _LOCKS, ids=str)
def test_the_lock_names_no_index(lock: Path) -> None:
    text = (_ROOT / lock).read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
