"""CI may not skip a test for what it must have: real hosts, root, torch; elsewhere it may."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.command import ran

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

@pytest.mark.torch
def test_trained():
    pytest.skip("no torch here")

@pytest.mark.root
def test_as_somebody_else():
    pytest.skip("no other user here")

def test_something_else():
    pytest.skip("no matter")
"""


@pytest.mark.parametrize(("ci", "refused", "skipped"), [("true", 4, 1), ("", 0, 5)])
def test_a_skipped_test_of_what_ci_must_have_fails_there(tmp_path: Path, ci: str, refused: int, skipped: int) -> None:
    """Both ways of asking for hosts count, and the reason is shown."""
    (tmp_path / "test_skipped.py").write_text(_SKIPPED)
    done = ran(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", _ROOT / "pyproject.toml", tmp_path],
        cwd=_ROOT,
        env={**os.environ, "CI": ci},
    )
    counts = {
        word: int(count) for count, word in re.findall(r"(\d+) (failed|error|skipped)", done.stdout.splitlines()[-1])
    }
    # What is skipped before it begins is an error, and what skips itself a failure.
    assert counts.get("failed", 0) + counts.get("error", 0) == refused, done.stdout
    assert counts["skipped"] == skipped, done.stdout
    assert "no hosts here" in done.stdout
    assert "no root here" in done.stdout
