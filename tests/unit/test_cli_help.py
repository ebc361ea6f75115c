"""The help names every command, once."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

from disttui.runner.cli.app import MOVED, SECTIONS, cli


def test_every_command_is_in_one_section() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(name for name, command in cli.commands.items() if not command.hidden)


def test_help_and_version() -> None:
    runner = CliRunner()
    assert "disttui run 2node --sandbox" in runner.invoke(cli, ["--help"]).output
    assert runner.invoke(cli, ["--version"]).output.startswith("disttui, version ")
    for words, _ in _all(cli):
        shown = runner.invoke(cli, [*words, "--help"])
        assert shown.exit_code == 0, words
        assert shown.output.startswith("Usage: ")


def test_help_command_shows_the_help_of_a_command() -> None:
    runner = CliRunner()
    for words in ((), ("run",), ("profile", "plan")):
        assert runner.invoke(cli, ["help", *words]).output == runner.invoke(cli, [*words, "--help"]).output


def test_help_fits_one_look() -> None:
    assert len(SECTIONS["Commands"]) <= 10
    shown = CliRunner().invoke(cli, ["--help"], env={"COLUMNS": "80"}).output
    assert len(shown.splitlines()) <= 52 and max(map(len, shown.splitlines())) <= 80, shown


def test_old_name_of_each_command_names_the_new_one() -> None:
    for old, new in MOVED.items():
        result = CliRunner().invoke(cli, [old, "x"])
        assert result.exit_code == 2 and f"'{old}' is now 'disttui {new}'." in result.stderr
        assert tuple(new.split()) in dict(_all(cli)) and old not in cli.commands


def test_every_command_has_an_example_and_a_short_summary() -> None:
    runner = CliRunner()
    for words, command in _all(cli):
        shown = runner.invoke(cli, [*words, "--help"]).output
        line = " ".join(words)
        assert f"  disttui {line}" in shown or f"$(disttui {line}" in shown, line
        overview = runner.invoke(cli, [*words[:-1], "--help"], env={"COLUMNS": "80"}).output
        assert f"  {command.get_short_help_str(200)}\n" in overview, line


def _all(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command, with the words that name it."""
    for name, command in group.commands.items():
        yield (*before, name), command
        if isinstance(command, click.Group):
            yield from _all(command, (*before, name))


def test_no_line_of_a_groups_list_of_commands_is_cut_off() -> None:
    groups = {name for name, command in cli.commands.items() if isinstance(command, click.Group)}
    assert "library" in groups
    for name in groups:
        shown = CliRunner().invoke(cli, [name, "--help"], env={"COLUMNS": "80"}).output
        assert "..." not in shown.partition("\nCommands:\n")[2], shown
