"""CI may not skip a test on real hosts; elsewhere it may."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SKIPPED = """
import pytest

@pytest.mark.cluster
def test_marked():
    pytest.skip("no hosts here")

@pytest.fixture
def requires_cluster():
    pytest.skip("no root here")

def test_by_fixture(requires_cluster):
    pass

def test_something_else():
    pytest.skip("no matter")
"""


@pytest.mark.parametrize(("ci", "outcome"), [("true", "1 failed, 1 skipped, 1 error"), ("", "3 skipped")])
def test_a_skipped_cluster_test_fails_in_ci(tmp_path: Path, ci: str, outcome: str) -> None:
    """Both ways of asking for hosts count, and the reason is shown."""
    (tmp_path / "test_skipped.py").write_text(_SKIPPED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", _ROOT / "pyproject.toml", tmp_path],
        cwd=_ROOT,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert outcome in done.stdout.splitlines()[-1], done.stdout
    assert "no hosts here" in done.stdout
    assert "no root here" in done.stdout
