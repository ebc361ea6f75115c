"""The help names every command, once."""

from __future__ import annotations

import click
from click.testing import CliRunner

from runner.cli.app import SECTIONS
from runner.cli.group import cli


def test_every_command_is_in_one_section() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(name for name, command in cli.commands.items() if not command.hidden)


def test_help_and_version() -> None:
    runner = CliRunner()
    assert "disttui run 2node --sandbox" in runner.invoke(cli, ["--help"]).output
    assert runner.invoke(cli, ["--version"]).output.startswith("disttui, version ")
    for name in cli.commands:
        shown = runner.invoke(cli, [name, "--help"])
        assert shown.exit_code == 0, name
        assert shown.output.startswith("Usage: ")


def test_every_command_has_an_example_that_names_it_and_a_first_sentence_that_fits() -> None:
    runner = CliRunner()
    overview = runner.invoke(cli, ["--help"], env={"COLUMNS": "80"}).output
    for name, command in cli.commands.items():
        if command.params:
            shown = runner.invoke(cli, [name, "--help"]).output
            assert f"  disttui {name}" in shown or f"$(disttui {name}" in shown, name
        assert f"  {command.get_short_help_str(200)}\n" in overview, name


def test_no_line_of_a_groups_list_of_commands_is_cut_off() -> None:
    groups = {name for name, command in cli.commands.items() if isinstance(command, click.Group)}
    assert "library" in groups
    for name in groups:
        shown = CliRunner().invoke(cli, [name, "--help"], env={"COLUMNS": "80"}).output
        assert "..." not in shown.partition("\nCommands:\n")[2], shown
