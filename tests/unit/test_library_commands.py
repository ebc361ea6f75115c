"""Commands on single profiles and inventories of a library: remove, rename, copy, edit, list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from disttui.runner.api.libraries import keep_key
from disttui.runner.cli.app import cli
from disttui.runner.errors import InputError
from disttui.runner.profile.load import load
from tests.command import ran
from tests.files import new_file
from tests.unit import history_kit

BASE = "disttui: 1\nhosts: [a]\njob: {script: x.py, args: [--lr, '${var:lr=1}']}\n"
LAB = "hosts: [node1, {host: node2, gpus: [0]}]\n"


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared folder in which `gpt` extends `base` and takes its hosts from an inventory."""
    folder = tmp_path / "team"
    (folder / "inventory").mkdir(parents=True)
    (folder / "base.yaml").write_text(BASE)
    (folder / "gpt.yaml").write_text("disttui: 1\nextends: base\nhosts: {inventory: lab}\n")
    (folder / "other.yaml").write_text(BASE)
    (folder / "inventory/lab.yaml").write_text(LAB)
    for kind in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    monkeypatch.setenv("DISTTUI_PROFILES", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def typed(*words: str, given: str = "") -> tuple[int, str]:
    """Exit code and all output of a command."""
    done = CliRunner().invoke(cli, ["library", *words], input=given)
    if isinstance(done.exception, InputError):
        return done.exception.exit_code, f"{done.output}{done.exception}"
    return done.exit_code, done.output


@pytest.mark.parametrize("name", ["base", "inventory/lab"])
@pytest.mark.parametrize("words", [("remove",), ("rename", "team/new")])
def test_a_profile_in_use_is_removed_only_after_a_yes(
    team: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: tuple[str, ...]
) -> None:
    command, *rest = words
    line = (command, f"team/{name}", *rest)
    code, said = typed(*line)
    assert code == 2 and f"team/{name} is needed by team/gpt" in said and "--yes" in said
    assert (team / f"{name}.yaml").exists()
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    assert typed(*line, given="n\n")[0] == 2 and (team / f"{name}.yaml").exists()
    if command == "rename" and name != "base":
        line = (command, f"team/{name}", "team/inventory/new")
    assert typed(*line, given="y\n")[0] == 0 and not (team / f"{name}.yaml").exists()


def test_unused_profile_is_removed_without_a_question(team: Path) -> None:
    assert typed("remove", "team/other")[0] == 0 and not (team / "other.yaml").exists()
    assert typed("remove", "team/base", "--yes")[0] == 0 and not (team / "base.yaml").exists()


def test_rename_and_copy(team: Path) -> None:
    assert typed("copy", "team/other", "team/nlp/new")[0] == 0
    assert (team / "nlp/new.yaml").read_text() == (team / "other.yaml").read_text() == BASE
    assert typed("rename", "team/other", "own/mine")[0] == 0
    assert not (team / "other.yaml").exists() and typed("show", "--text", "own/mine")[1].rstrip() == BASE.rstrip()
    code, said = typed("rename", "team/gpt", "team/base")
    assert code == 2 and "team/base already exists" in said and (team / "gpt.yaml").exists()


def test_a_suffix_in_a_new_name_is_left_out(team: Path) -> None:
    for words in (("save", "team/other"), ("copy", "team/other"), ("rename", "team/other")):
        assert typed(*words, f"team/nlp/{words[0]}.yaml")[0] == 0
        assert (team / f"nlp/{words[0]}.yaml").read_text() == BASE
    assert not [*team.rglob("*.yaml.yaml")]


def test_a_name_without_its_library_is_saved_where_it_is(team: Path) -> None:
    new_file(team.parent / "mine.yaml", BASE.replace("x.py", "y.py"))
    code, said = typed("save", "mine.yaml", "other", "--replace")
    assert (code, said) == (0, "team/other: saved\n")


def test_a_checkout_is_checked_as_a_library(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISTTUI_PROFILES")
    (team / "nlp").mkdir()
    (team / "gpt.yaml").rename(team / "nlp/gpt.yaml")
    monkeypatch.chdir(team)
    assert typed("validate", "--ci") == (0, "")


def test_edit_and_remove_name_the_profile_that_was_meant(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "touch edited; false")
    for command in ("edit", "remove"):
        for name, meant in (("team/bsae", "team/base"), ("team/inventory/lap", "team/inventory/lab")):
            code, said = typed(command, name)
            assert code == 2 and f"Did you mean {meant}?" in said, said
    assert not Path("edited").exists()


def test_an_inventory_is_saved_edited_listed_and_checked(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("new.yaml").write_text(LAB)
    assert typed("save", "new.yaml", "team/inventory/new")[0] == 0
    monkeypatch.setenv("EDITOR", "sed -i s/node2/node3/")
    assert typed("edit", "team/inventory/new")[0] == 0
    rows = [line.split() for line in typed("list", "team")[1].splitlines()]
    assert ["team/inventory/new", "node1,", "node3", "inventory"] in rows
    [library] = json.loads(typed("list", "team", "--json")[1])
    assert [one["hosts"] for one in library["inventories"]] == [["node1", "node2"], ["node1", "node3"]]
    monkeypatch.setenv("EDITOR", "sed -i s/gpus/gpsu/")
    code, said = typed("edit", "team/inventory/new")
    assert code == 2 and "unknown key 'gpsu', did you mean 'gpus'?" in said
    (team / "inventory/new.yaml").write_text("disttui: 1\n")
    code, said = typed("validate", "team")
    assert code == 2 and "inventory/new.yaml:1:1: this inventory has no hosts" in said


def test_key_file_is_saved_absolute_and_never_for_a_pattern(team: Path) -> None:
    config, key = team.parent / "ssh_config", Path("lab key").absolute()
    key.write_text("a key")
    environ = {"DISTTUI_SSH_CONFIG": str(config)}
    assert keep_key(["node1", "node2"], "lab key", environ) == config
    with pytest.raises(InputError, match=r"'\*' would be a pattern"):
        keep_key(["node1", "*"], "lab key", environ)
    assert config.read_text() == f'\nHost node1 node2\n    IdentityFile "{key}"\n'


@pytest.fixture
def newcomer(team: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new member of the team, with a key of an unusual name; returns the ssh configuration."""
    monkeypatch.delenv("DISTTUI_PROFILES")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (team / "other.yaml").write_text("disttui: 1\nhosts: [{host: a, user: train}, b]\njob: {script: x.py}\n")
    config = new_file(team.parent / "ssh_config", "Host node1\n  User known\nHost *\n  IdentityFile /nowhere/key\n")
    monkeypatch.setenv("DISTTUI_SSH_CONFIG", str(config))
    Path("lab_key").write_text("a key")
    return config


def test_edit_without_a_terminal_opens_no_editor_that_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tmp_path / "opened"
    for name in ("vi", "mine"):
        new_file(tmp_path / name, f"#!/bin/sh\necho {name} >> {opened}\n", 0o755)
    history_kit.command(tmp_path, "library", "save", "2node", "own/two")
    monkeypatch.setenv("VISUAL", str(tmp_path / "vi"))
    done = history_kit.command(tmp_path, "library", "edit", "own/two")
    assert done.returncode == 2 and "vi needs a terminal" in done.stderr and "library save" in done.stderr
    monkeypatch.setenv("VISUAL", str(tmp_path / "mine"))
    assert "unchanged" in history_kit.command(tmp_path, "library", "edit", "own/two").stdout
    assert opened.read_text() == "mine\n"


def test_add_lists_what_is_left_to_a_person_without_a_terminal(newcomer: Path, team: Path) -> None:
    code, said = typed("add", "lab", str(team))
    assert code == 0 and "your login on node2, b (now " in said and "Python on a, node1, node2, b" in said
    assert "CONFIG/disttui/personal.yaml" in said and "no key found for a, node1, node2, b" in said
    assert not (team.parent / "CONFIG/disttui/personal.yaml").exists()


def test_add_asks_a_new_member_for_login_python_and_key(
    newcomer: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    personal = team.parent / "CONFIG/disttui/personal.yaml"
    personal.parent.mkdir(parents=True, exist_ok=True)
    personal.write_text("hosts:\n  b: {port: 2222}  # behind the router\n")
    code, said = typed("add", "lab", str(team), given="alice\n~/venv/bin/python\nlab_key\n")
    assert code == 0 and said.count("saved in") == 2
    assert "# behind the router" in personal.read_text()
    assert load(team / "gpt.yaml", ["var.lr=1"]).hosts[2].user == "alice"
    hosts = load(team / "other.yaml").hosts
    assert [(host.user, host.port, host.python) for host in hosts] == [
        ("train", None, "~/venv/bin/python"), ("alice", 2222, "~/venv/bin/python")
    ]  # fmt: skip
    asked = ran(["ssh", "-F", newcomer, "-G", "node2"], check=True).stdout
    assert f"identityfile {Path('lab_key').absolute()}" in asked
    assert typed("remove", "lab")[0] == 0
    assert typed("add", "lab", str(team))[1] == "lab: added\n", "nothing is left to ask"
