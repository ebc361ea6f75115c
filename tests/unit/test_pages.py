"""What the pages of docs/ and the messages name is there: commands, options, launchers, forms of JSON."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click

from disttui.runner.cli.app import cli
from disttui.runner.profile.load import parse
from disttui.runner.profile.sections import Launch

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
