"""The plan of the house that import-linter does not draw: no import circle, and one meaning for each name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from disttui.runner.node.gang.gang import Phase

ROOT = Path(__file__).parents[2]
PATHS = sorted(path for room in ("runner", "tui") for path in (ROOT / room).rglob("*.py"))


@cache
def _trees() -> dict[str, ast.Module]:
    """Module → its source. A package is named as it is imported."""
    trees = {}
    for path in PATHS:
        parts = ("disttui", *path.relative_to(ROOT).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return trees


def _imported(module: str, node: ast.Import | ast.ImportFrom, known: set[str], packages: set[str]) -> Iterator[str]:
    """The modules of ours that one import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
        return
    base = node.module or ""
    if node.level:
        parts = module.split(".")
        above = len(parts) - node.level + (module in packages)
        base = ".".join([*parts[:above], *([node.module] if node.module else [])])
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        if inner in known:
            yield inner
        elif base in known:
            yield base


def _graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Module → the modules that it imports anywhere: deferred imports and those for types count as well."""
    known = set(trees)
    packages = {name.rpartition(".")[0] for name in known} - {""}
    return {
        module: {
            other
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for other in _imported(module, node, known, packages)
            if other != module
        }
        for module, tree in trees.items()
    }


def _circles(graph: dict[str, set[str]]) -> list[str]:
    """Each group of modules that import one another, as one way around it."""
    found = []
    seen: set[str] = set()
    for start in sorted(graph):
        if start in seen:
            continue
        ways = {other: [start, other] for other in graph[start]}
        waiting = sorted(ways)
        while waiting and start not in ways:
            here = waiting.pop(0)
            for other in sorted(graph[here] - ways.keys()):
                ways[other] = [*ways[here], other]
                waiting.append(other)
        if start in ways:
            found.append(" -> ".join(ways[start]))
            seen.update(ways[start])
    return found


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Also not through an import inside a function or one for types alone."""
    assert _circles(_graph(_trees())) == []


def test_a_circle_of_deferred_imports_is_listed() -> None:
    """The search itself finds a way around, whatever kind of import it goes through."""
    sources = {
        "disttui.runner": "",
        "disttui.runner.a": "def f():\n    from disttui.runner import b\n",
        "disttui.runner.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .c import C\n",
        "disttui.runner.c": "import disttui.runner.a\n",
        "disttui.runner.d": "from disttui.runner.a import f\n",
    }
    graph = _graph({name: ast.parse(source) for name, source in sources.items()})
    assert _circles(graph) == [" -> ".join(f"disttui.runner.{name}" for name in "abca")]


_SAME = {
    "Target": "`job` of the profile, and of the spec that is made of it",
    "Launch": "`launch` of the profile, and of the spec that is made of it",
    "Problem": "what a user can correct; the two zips that are shipped import nothing of each other",
    "RankIdentity": "where a process stands in the run; the two zips that are shipped import nothing of each other",
    **dict.fromkeys(
        ("Code", "Cpu", "Disk", "Git", "Gpu", "GpuProcess", "Interpreter", "Memory", "Needs", "Nic", "Workdir"),
        "a part of the facts as a host sends it, and as the viewing side has checked it",
    ),
}
"""Names that two classes share, and the one idea that they stand for."""


def _classes(node: ast.AST, within: str = "") -> Iterator[str]:
    """Names of all classes. A class in a class is named as it is used: `Table.Opened`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield f"{within}{child.name}"
            yield from _classes(child, f"{within}{child.name}.")
        else:
            yield from _classes(child, within)


def test_classes_share_a_name_only_if_they_are_the_same_idea() -> None:
    homes: dict[str, list[str]] = {}
    for module, tree in _trees().items():
        for name in _classes(tree):
            homes.setdefault(name, []).append(module)
    shared = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert {name: modules for name, modules in shared.items() if name not in _SAME} == {}
    assert _SAME.keys() - shared.keys() == set(), "no longer shared: take it off the list"
    assert {name: modules for name, modules in shared.items() if len(modules) > 2} == {}


def test_the_diagram_of_the_gang_has_every_phase() -> None:
    assert {phase.name for phase in Phase if phase.name not in (Phase.__doc__ or "")} == set()


def test_the_glossary_speaks_of_classes_and_files_that_exist() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    classes = {name for tree in _trees().values() for name in _classes(tree)}
    named = set(re.findall(r"`(?:runner\.[a-z_.]+\.)?([A-Z][A-Za-z]*[a-z][A-Za-z]*)`", page))
    assert named - classes == set()
    assert "HostMirror" in named
    paths = re.findall(r"`((?:runner|tui|tests)/[\w/.]+)`", page)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    words = re.findall(r"^\| ([a-z ,]+) \|", page, re.M)
    assert sorted(set(words) - {"word"}) == sorted(word for word in words if word != "word"), "listed twice"
    assert [line for line in page.splitlines() if line.startswith("|") and line.count("|") != 3] == []


def test_texts_name_only_modules_that_exist() -> None:
    """In docstrings, comments and docs: `runner/planning/plan.py`, `disttui.tui.theme`, `disttui.runner.api.Viewer`."""
    texts = [*PATHS, *(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    wrong = []
    for path in texts:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"`(?:disttui\.)?((?:runner|tui)[./][a-z_]+(?:[./][a-z_]+)*)[`:/. ]", text):
            module = f"disttui.{name.removesuffix('.py').replace('/', '.')}"
            above = module.rpartition(".")[0]
            if not {module, above} & _trees().keys() and not (ROOT / name).exists():
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert wrong == []


@pytest.mark.parametrize(
    ("wall", "without"),
    [
        ("The core knows no screen", {"cli"}),
        ("paramiko stays in disttui.runner.transport", {"transport"}),
        ("The viewing side never imports torch", {"train"}),
        ("The viewing side shares the protocol with hosts, and none of their program", {"node", "train", "protocol"}),
    ],
)
def test_no_room_is_forgotten_in_the_list_of_a_wall(wall: str, without: set[str]) -> None:
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split(f'\nname = "{wall}"\n', 1)[1]
    listed = set(re.findall('"([a-z.]+)"', contract.split("source_modules = [", 1)[1].partition("]")[0]))
    rooms = {f"disttui.runner.{path.parent.name}" for path in (ROOT / "runner").glob("*/__init__.py")}
    assert rooms - listed == {f"disttui.runner.{name}" for name in without}


def test_the_page_of_architecture_has_every_room() -> None:
    rooms = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Packages", 1)[1]
    table = rooms.split("\n## ", 1)[0]
    names = [
        path.name for path in (ROOT / "runner").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    known = set(re.findall(r"`(?:runner/)?([a-z_]+)(?:/|\.py)`", table))
    assert sorted({name.removesuffix(".py") for name in names} - known) == ["__init__"]
