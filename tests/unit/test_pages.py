"""What the pages of docs/ and the messages name is there: commands, keys, paths, forms of JSON."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pytest
import yaml

from disttui.runner.cli.app import cli
from disttui.runner.node.host import HostPart
from disttui.runner.profile.load import parse
from disttui.runner.profile.sections import Launch
from tests.profile_table import INSIDE, OF_DISTTUI, OF_RANKS, PAGE, SECTIONS, docstrings, page

ROOT = Path(__file__).parents[2]
TEXTS = [
    *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "profiles").glob("*.yaml"),
    *(path for room in ("runner", "tui", "examples") for path in (ROOT / room).rglob("*.py")),
]  # fmt: skip
_TYPED = re.compile(r"(`|^ {4}|\"  |)disttui ([a-z]+)\b([^`\n#\"|;,&]*)", re.M)
"""What makes it a command and not a sentence, the command, and what follows it."""


def _named(name: str, rest: str) -> click.Command | None:
    """The command that typed words name."""
    found = cli.commands.get(name)
    if not isinstance(found, click.Group):
        return found
    return found.commands.get(next(iter(rest.split()), ""))


def _options(command: click.Command) -> set[str]:
    return {"--help", *(word for parameter in command.params for word in parameter.opts)}


def _printing_json(group: click.Group, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _printing_json(command, f"{name} ")
        elif "--json" in _options(command):
            yield f"{before}{name}"


def test_commands_named_in_texts_exist_with_their_options() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: disttui {name}{rest}"
        for path in TEXTS
        for typed, name, rest in _TYPED.findall(path.read_text(encoding="utf-8"))
        if not _is_there(name, rest, typed=bool(typed))
    ]
    assert wrong == []


def test_the_page_of_formats_has_every_command_that_prints_json() -> None:
    rows = _rows("docs/formats.md", "## What `--json` prints")
    named = {name for row in rows for name in re.findall("`([^`]+)`", row)}
    assert named - {"runs metrics --try"} == set(_printing_json(cli))


def test_the_page_of_launchers_has_every_launcher() -> None:
    rows = _rows("docs/launchers.md", "# Launchers")
    named = [re.findall("^`([^`]+)`", row)[0] for row in rows]
    value = Launch.model_fields["launcher"].annotation
    assert sorted(named) == sorted(word for union in get_args(value) for word in get_args(union))


def test_every_profile_on_a_page_is_a_good_one() -> None:
    fenced = re.compile(r"^```yaml\n(.*?)^```", re.M | re.S)
    indented = re.compile(r"((?:^ {4}.*\n)+)", re.M)
    pages = [path.read_text(encoding="utf-8") for path in TEXTS if path.suffix == ".md"]
    blocks = [textwrap.dedent(block) for page in pages for kind in (fenced, indented) for block in kind.findall(page)]
    profiles = [block for block in blocks if re.search("^hosts:", block, re.M) and re.search("^job:", block, re.M)]
    profiles = [block for block in profiles if "extends:" not in block]
    assert len(profiles) >= 3
    for text in profiles:
        parse(text if "disttui: 1" in text else f"disttui: 1\n{text}", Path("mine.yaml"))


def _is_there(name: str, rest: str, *, typed: bool) -> bool:
    command = _named(name, rest)
    if command is None:
        return not typed
    return set(re.findall(r" (--[a-z-]+)", rest)) <= _options(command)


def _rows(page: str, heading: str) -> list[str]:
    """The first column of the table under a heading."""
    section = re.split(r"\n##? ", (ROOT / page).read_text(encoding="utf-8").split(heading, 1)[1], maxsplit=1)[0]
    table = section.split("\n|---", 1)[1]
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| `")]


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


def test_the_page_of_keys_is_what_the_schema_says() -> None:
    for model in SECTIONS.values():
        missing = model.model_fields.keys() - docstrings(model).keys()
        assert not missing, f"{model.__name__}: no docstring under {', '.join(missing)}"
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.profile_table writes it anew"


def test_the_page_lists_the_variables_that_a_rank_gets() -> None:
    spec: Any = {
        "run": "x",
        "node_rank": 0,
        "env": {},
        "python": "python3",
        "activate": "",
        "launch": {"instrument": True},
        "resume_from": "/c",
    }
    added = {
        name.decode()
        for name in HostPart(spec, "/r/x/0", "", None, {}, 0o22).environment(2)
        if name.startswith(b"DISTTUI_") and name not in os.environb
    }
    assert added | {"DISTTUI_METRICS"} == OF_RANKS.keys()


def test_every_variable_of_disttui_is_listed() -> None:
    sources = [
        path.read_text(encoding="utf-8") for folder in ("runner", "tui") for path in (ROOT / folder).rglob("*.py")
    ]
    used = {name for text in sources for name in re.findall(r"\bDISTTUI_[A-Z]+(?:_[A-Z]+)*\b", text)}
    assert used - INSIDE == OF_RANKS.keys() | OF_DISTTUI.keys()
