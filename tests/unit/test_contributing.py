"""What a contributor reads and runs is true: paths, make targets, hooks, the workflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))


def test_every_path_of_the_guide_exists() -> None:
    named = {word for quoted in re.findall(r"`([^`]+)`", GUIDE) for word in quoted.split() if "…" not in word}
    paths = {word for word in named if re.match(r"(?:runner|tui|tests|docs)/", word)}
    linked = set(re.findall(r"\]\(([^)#]+)\)", GUIDE))
    assert len(paths) > 20
    assert sorted(path for path in paths | linked if not (ROOT / path).exists()) == []


def test_every_core_and_test_folder_is_on_the_map() -> None:
    folders = [
        path for name in ("runner", "tests") for path in (ROOT / name).iterdir() if (path / "__init__.py").exists()
    ]
    assert sorted(one for path in folders if f"`{(one := str(path.relative_to(ROOT)))}/`" not in GUIDE) == []


@pytest.mark.parametrize("file", ["CONTRIBUTING.md", "README.md", ".pre-commit-config.yaml", ".ci/run"])
def test_every_make_target_that_is_named_exists(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert set(re.findall(r"(?m)(?:^ *|`|entry: )make ([a-z]+)", text)) <= TARGETS


def test_hooks_run_from_the_projects_own_environment() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [one["repo"] for one in repositories] == ["local"]
    assert {hook["language"] for hook in repositories[0]["hooks"]} == {"system"}


def test_the_workflow_runs_what_contributors_and_ci_run() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    runs = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert runs["check"] == ["make check PYTHON=python"]
    assert runs["all"][-1].endswith(".ci/run")
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
