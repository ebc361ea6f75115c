"""The help names every command, once."""

from __future__ import annotations

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
