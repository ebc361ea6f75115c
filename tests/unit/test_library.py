"""Where a profile's name leads, and what the list of all libraries shows."""

from __future__ import annotations

import json
import os
import random
import re
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from disttui.runner.api import libraries
from disttui.runner.api.libraries import list_library, remove_library
from disttui.runner.cli.app import cli
from disttui.runner.errors import InputError, near
from disttui.runner.library.store import lock
from disttui.runner.profile.composition import Trees
from disttui.runner.profile.library import LibraryEntry, find, list_names, list_profiles
from disttui.runner.profile.load import parse, parse_quickly
from disttui.runner.profile.nodes import Source
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.schema import Profile
from disttui.tui.home import rows
from disttui.tui.inventory import Inventory, fingerprint, read_inventory
from tests.counting import counted
from tests.files import new_file
from tests.unit.history_kit import kept


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Empty libraries, and an empty current folder."""
    found = {name: tmp_path / name for name in ("config/disttui/profiles", "team1", "team2", "here")}
    for folder in found.values():
        folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("DISTTUI_PROFILES", f"{tmp_path}/team1::{tmp_path}/gone:{tmp_path}/team2:~nobody-here/x")
    monkeypatch.chdir(tmp_path / "here")
    return {"own": found["config/disttui/profiles"], **found}


def write(folder: Path, name: str) -> Path:
    return new_file(folder / name, "disttui: 1\n")


def test_own_wins_over_team_over_built_in(folders: dict[str, Path]) -> None:
    assert find("2node").parent.name == "profiles"
    team = write(folders["team2"], "2node.yml")
    assert find("2node") == team
    first = write(folders["team1"], "2node.yaml")
    assert find("2node") == first
    own = write(folders["own"], "2node.yaml")
    assert find("2node") == find("2node.yaml") == own
    (folders["here"] / "2node").mkdir()
    assert find("2node") == own, "a folder of that name is no profile"
    here = write(folders["here"], "2node.yaml")
    assert find("2node.yaml") == Path(here.name)
    assert find("2node") == own
    assert find(str(team)) == team


def test_the_list_has_every_name_once(folders: dict[str, Path]) -> None:
    own, team = write(folders["own"], "local.yaml"), write(folders["team1"], "ours.yaml")
    write(folders["team2"], "ours.yaml")
    write(folders["own"], "notes.txt")
    entries = {entry.name: entry for entry in list_profiles()}
    assert list(entries) == ["2node", "2node-fsdp", "2x8gpu", "local", "ours"]
    assert entries["local"] == LibraryEntry("local", own, "own", "own")
    assert entries["ours"] == LibraryEntry("ours", team, "team", "team1")
    assert entries["2node"].origin == "built in"


def test_a_file_that_may_be_anything_is_not_suggested(folders: dict[str, Path]) -> None:
    write(folders["here"], ".pre-commit-config.yaml")
    write(folders["here"], "mkdocs.yaml")
    with pytest.raises(InputError) as caught:
        find("nofile")
    assert caught.value.cure == "Known profiles: 2node, 2node-fsdp, 2x8gpu, local."


def test_a_name_that_shares_only_its_library_is_not_suggested() -> None:
    known = ["team/p9", "team/gpt"]
    assert [near(word, known) for word in ("team/nope", "team/gtp", "tema/gpt")] == [None, "team/gpt", "team/gpt"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2nod", "profile '2nod' not found\n  → Did you mean 2node?"),
        ("mien.yaml", "profile 'mien.yaml' not found\n  → Did you mean mine.yaml?"),
        ("zzz", "profile 'zzz' not found\n  → Known profiles: 2node, 2node-fsdp, 2x8gpu, local"),
        ("./mien.yaml", "./mien.yaml: file not found\n  → Did you mean mine.yaml?"),
        ("nothere.yaml", "profile 'nothere.yaml' not found\n  → Known profiles: 2node"),
        ("trian.py", "trian.py: file not found\n  → Did you mean train.py?"),
        ("gone/x.yaml", "gone/x.yaml: file not found"),
        ("\x1b[2J\udc80", "profile '\\x1b[2J\\udc80' not found"),
        ("a\0b", "profile 'a\\x00b' not found"),
        ("zzz/", "zzz/: file not found"),
        ("", "profile '' not found"),
        ("-", "profiles are not read from standard input\n  → Save it in a file."),
        ("folder.yaml", "folder.yaml is a folder\n  → Name a profile in it."),
        ("..", ".. is a folder"),
    ],
)
def test_what_is_not_there(folders: dict[str, Path], name: str, message: str) -> None:
    for file in ("mine.yaml", "train.py", "key.yaml"):
        write(folders["here"], file)
    (folders["here"] / "folder.yaml").mkdir()
    with pytest.raises(InputError) as caught:
        find(name)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2


GOOD = "disttui: 1\nhosts: [local]\nnum_processes: 2\njob: {builtin: bytegpt}\n"
TALL = """\
disttui: 1
description: two boxes
hosts:
  - node1
  - {host: node2, gpus: [0, 1]}
num_processes: 2
env: {A: "1", B: two}
job:
  script: train.py
  args: [--steps, "100", --lr, "3e-4"]
launch:
  restarts: 1
"""
WORDS = [
    "", "~", "null", "${env:A}", "${x}", "&a 1", "*a", "!!str 1", "<<: {a: 1}", "a: 1", "env: 1", "- ", "'", '"\\0"',
    '"\\ud800"', "\x85", "\u202e", "#", "?", "---\n", "${var:x=1}", "extends: y", "hosts=: [a]", "args+: [b]", "\t",
]  # fmt: skip
"""What a line of a profile may get."""


@pytest.fixture
def listed(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A config with two libraries of the team, the second before the user's own."""
    monkeypatch.delenv("DISTTUI_PROFILES")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    libraries = f"[{{name: two, folder: {folders['team2']}}}, own, {{name: one, folder: {folders['team1']}}}]"
    (tmp_path / "config/disttui/config.yaml").write_text(f"theme: disttui-light\nlibraries: {libraries}\n")
    return folders


def put(folder: Path, name: str, text: str = GOOD) -> Path:
    return new_file(folder / name, text)


def test_libraries_are_searched_in_the_order_of_the_config(listed: dict[str, Path]) -> None:
    one, two = put(listed["team1"], "a.yaml"), put(listed["team2"], "nlp/a.yaml")
    assert find("a") == find("one/a") == find("one/a.yaml") == one
    assert find("nlp/a") == find("two/nlp/a") == two
    own = put(listed["own"], "a.yaml")
    assert find("a") == find("own/a") == own and find("one/a") == one
    assert find("examples/2node").parent.name == "profiles"
    with pytest.raises(
        InputError, match="one/b: the library one does not have this profile\n  → Known profiles: one/a"
    ):
        find("one/b")
    beside = put(listed["here"], "one/a.yaml")
    assert find("one/a.yaml").resolve() == beside, "an existing path comes first"


def test_a_name_cannot_lead_out_of_its_library(listed: dict[str, Path], tmp_path: Path) -> None:
    secret = put(tmp_path, "secret.yaml")
    (listed["team1"] / "link.yaml").symlink_to(secret)
    (listed["team1"] / "folder").symlink_to(tmp_path)
    (listed["own"] / "mine.yaml").symlink_to(secret)
    assert find("mine").resolve() == secret, "in a library of one's own, links lead where the user has led them"
    for name in ("one/link", "one/../secret", "one//secret", f"one/{secret}", "one/folder/secret", "one/.git/x"):
        with pytest.raises(InputError) as caught:
            find(name)
        assert caught.value.exit_code == 2, name
    with pytest.raises(InputError, match="not found"):
        find("link")
    shown = CliRunner().invoke(cli, ["library", "list", "one"]).output
    assert "this link leads outside of the library" in shown and "secret" not in shown


def test_broken_profile_is_listed_with_its_error(listed: dict[str, Path]) -> None:
    put(listed["team1"], "good.yaml")
    put(listed["team1"], "evil.yaml", GOOD + 'description: "\\e[2J\\u202Eevil"\n')
    put(listed["team1"], "bad.yaml", "disttui: 1\nhosts: [local]\njob: {builtin: bytegpt}\nlanch: 1\n")
    put(listed["team1"], "\x1b[31mred.yaml", "hosts: [")
    (listed["own"] / "good.yaml").write_text(GOOD)
    result = CliRunner().invoke(cli, ["library", "list"])
    assert result.exit_code == 0
    assert "line 4:1: unknown key 'lanch', did you mean 'launch'?" in result.output
    assert "shadowed by own/good" in result.output and "2 processes" in result.output
    assert "\x1b" not in result.output and "\u202e" not in result.output and "red" in result.output
    (data,) = json.loads(CliRunner().invoke(cli, ["library", "list", "one", "--json"]).output)
    by_name = {each["name"]: each for each in data["profiles"]}
    assert by_name["good"]["hosts"] == ["local"] and by_name["good"]["problem"] is None
    put(listed["team1"], "bad.yaml")
    (again,) = list_library(library="one")
    assert not [one for one in again.profiles if one.entry.name == "bad" and one.header.problem], "it is read again"


def test_app_lists_profiles_in_lookup_order(listed: dict[str, Path]) -> None:
    for library in ("team1", "team2", "own"):
        put(listed[library], "a.yaml")
    (listed["team1"] / "out.yaml").symlink_to("/etc/passwd")
    found = read_inventory(os.environ, time.time()).profiles
    assert [row.name for row in found[:3]] == ["a", "own/a", "one/a"]
    assert [row.shadowed_by for row in found[:3]] == ["", "two/a", "two/a"]
    shown = rows.profiles(Inventory(profiles=found))
    assert [row.key for row in shown[:3]] == [str(listed[name] / "a.yaml") for name in ("team2", "own", "team1")]
    assert "out" not in [row.name for row in found] and str(listed["team1"] / "out.yaml") not in {
        row.key for row in shown
    }
    assert shown[0].cells[0] == "a" and shown[1].cells[0] == [("own/a", "muted")]
    assert shown[1].cells[-1] == [("shadowed by two/a", "muted")]


def test_app_rows_open_their_own_profile_and_name_it(listed: dict[str, Path]) -> None:
    """Another's file cannot take the place of one of these rows."""
    paths = [
        put(listed["team2"], "x.yaml"),
        put(listed["own"], "x.yaml"),
        put(listed["own"], "two/x.yaml"),
        put(listed["own"], "one/x.yaml"),
        put(listed["team1"], "x.yaml"),
        put(listed["team1"], "y.yaml"),
        put(listed["team1"], "y.yml"),
    ]
    found = [row for row in read_inventory(os.environ, time.time()).profiles if row.path in paths]
    assert len(found) == len(paths) == len({row.key for row in rows.profiles(Inventory(profiles=tuple(found)))})
    assert [find(row.name) for row in found] == [row.path for row in found]
    names = {row.path: row.name for row in found}
    assert [names[path] for path in paths] == ["x", "own/x", "own/two/x", "own/one/x", "one/x", "y", "one/y.yml"]


def test_every_listed_or_completed_name_finds_its_profile(listed: dict[str, Path]) -> None:
    """A folder of one's own may be called as a library is, and a library may have a.yaml beside a.yml."""
    inner = put(listed["own"], "one/y.yaml")
    put(listed["team1"], "a.yml")
    put(listed["team1"], "a.yaml")
    put(listed["team2"], "a.yaml")
    found = [(each.library.name, one) for each in list_library() for one in each.profiles]
    assert [find(one.name) for _, one in found] == [find(one.full_name) for _, one in found]
    assert [find(one.name) for _, one in found] == [one.entry.path for _, one in found]
    assert {one.name for name, one in found if name == "one"} == {"one/a", "one/a.yml"}
    (own,) = list_library(library="own")
    assert [(one.name, one.shadowed_by) for one in own.profiles] == [("own/one/y", "")]
    assert all(find(name) for name in list_names())
    shown = CliRunner().invoke(cli, ["library", "list", "one"]).output.splitlines()
    assert [line.split()[0] for line in shown[1:]] == ["one/a", "one/a.yml"]
    (data,) = json.loads(CliRunner().invoke(cli, ["library", "list", "own", "--json"]).output)
    assert find(data["profiles"][0]["full_name"]) == inner


def test_the_app_sees_a_change_of_all_that_a_profile_is_made_of(listed: dict[str, Path]) -> None:
    put(listed["team1"], "a.yaml", GOOD.replace("[local]", "{inventory: lab}"))
    lab = put(listed["team1"], "inventory/lab.yaml", "hosts: [n1]\n")
    config = listed["own"].parent
    before = fingerprint(os.environ)
    for path in (lab, put(config, "personal.yaml", "python: /usr/bin/python3\n"), config / "config.yaml"):
        os.utime(path, ns=(1, 1))
        after = fingerprint(os.environ)
        assert after != before, path
        before = after


def test_an_edit_that_changes_nothing_keeps_the_ends_of_lines(
    listed: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = new_file(listed["own"] / "a.yaml", GOOD.replace("\n", "\r\n").encode())
    before = path.stat().st_mtime_ns
    monkeypatch.setenv("VISUAL", "true")
    result = CliRunner().invoke(cli, ["library", "edit", "a"])
    assert result.output == "a: unchanged\n" and path.stat().st_mtime_ns == before


def test_a_library_that_another_process_changes_is_not_removed(
    listed: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disttui.runner.profile.save._PATIENCE", 0.1)
    with lock("one", os.environ), pytest.raises(InputError, match="one: another disttui is changing this library"):
        remove_library("one")
    remove_library("one")
    assert [each.library.name for each in list_library()] == ["two", "own", "examples"]


def test_the_list_has_the_last_run_of_a_profile(listed: dict[str, Path], tmp_path: Path) -> None:
    path = put(listed["own"], "two.yaml")
    kept(tmp_path / "data", source=str(path), problem="node1 is not reached")
    (own,) = list_library(library="own")
    assert own.profiles[0].last and own.profiles[0].last.state == "failed"
    assert "failed" in CliRunner().invoke(cli, ["library", "list", "own"]).output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("libraries: team", r"config.yaml:1:1: libraries is not a list"),
        ("theme: x\nlibraries:\n- {name: own, folder: /x}", r"config.yaml:3:4: own is a built-in library"),
        ("libraries: [{name: ../x, git: y}]", r"config.yaml:1:14: '../x' is not a valid library name"),
        ("libraries: [{name: x, folder: y}]", r"config.yaml:1:23: not an absolute path"),
        ("libraries: [own, own]", r"config.yaml:1:18: the library own is listed twice"),
        ("libraries: [x]", r"config.yaml:1:13: not a library, expected own, examples"),
    ],
)
def test_a_config_that_cannot_be_used(listed: dict[str, Path], tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config/disttui/config.yaml").write_text(text + "\n")
    result = CliRunner().invoke(cli, ["library", "list"])
    assert isinstance(result.exception, InputError) and result.exception.exit_code == 2
    assert re.search(message, str(result.exception))


def test_a_list_of_profiles_costs_a_few_times_their_yaml(listed: dict[str, Path], tmp_path: Path) -> None:
    """Of 500 that were never read, in calls of functions."""
    paths = [put(listed["team1"], f"g{number % 50}/p{number}.yaml", TALL) for number in range(500)]
    with counted() as loading:
        for path in paths:
            yaml.load(path.read_bytes(), yaml.CSafeLoader)
    with counted() as listing:
        (found,) = list_library(os.environ, "one", runs=False)
    assert len(found.profiles) == 500 and found.profiles[7].header.processes == (2, 2)
    assert listing.number < 7 * loading.number  # measured: 3.8


def test_a_list_reads_only_what_has_changed_wrong_profiles_too(
    listed: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("good", GOOD), ("wrong", GOOD + "wrong: 1\n"), ("no", "[")):
        put(listed["team1"], f"{name}.yaml", text)
    missing = put(listed["team1"], "missing.yaml", '"\\x65xtends": base\n' + GOOD)
    read: list[str] = []

    def noted(found: Source, path: Path, trees: Trees) -> Profile:
        read.append(path.stem)
        return parse_quickly(found, path, trees)

    monkeypatch.setattr(libraries, "parse_quickly", noted)

    def problems() -> dict[str, str]:
        read.clear()
        return {one.entry.name: one.header.problem for one in list_library(library="one")[0].profiles}

    first = problems()
    assert sorted(read) == ["good", "missing", "no", "wrong"] and "line 5:1: unknown key" in first["wrong"]
    assert problems() == first and not read
    put(listed["team1"], "base.yaml", "env: {A: b}\n")
    assert problems()["missing"] == "" and {"base", "missing"} <= {*read} and "good" not in read, "of another file"
    missing.write_text(missing.read_text() + "wrong: 1\n")
    assert "unknown key 'wrong'" in problems()["missing"] and "good" not in read
    read.clear()
    list_library(library="two")
    assert not read, "of another library"


def test_of_a_huge_profile_no_header_is_read(listed: dict[str, Path]) -> None:
    put(listed["team1"], "huge.yaml", GOOD + "#" * 70_000)
    [profile] = list_library(library="one")[0].profiles
    assert profile.header == libraries.Header("larger than 64 KiB, not read for this list")


@pytest.mark.parametrize("text", [entry.path.read_text() for entry in list_profiles() if entry.origin == "built in"])
def test_a_list_and_a_run_read_the_same_of_a_profile(listed: dict[str, Path], text: str) -> None:
    """Of every profile that one changed word, key or line makes of a good one."""
    mark = "env: {A: ~, B: '~', C: \"\\ud83d\\ude00\", D: ${env:X}}\n"
    draw = random.Random(1)
    lines = (text + mark).splitlines(keepends=True)
    for _ in range(150):
        at, words = draw.randrange(len(lines)), draw.sample(WORDS, 2)
        line = lines[at].replace(draw.choice(["a", "1", ":", " ", "[", "x", "\n"]), words[0], 1) + words[1]
        changed = "".join([*lines[:at], line, *lines[at + 1 :]])
        outcomes = []
        for quick in (False, True):
            path = listed["own"] / "x.yaml"
            try:
                profile = (
                    parse_quickly(Source(str(path), changed, Path("/").stat()), path) if quick else parse(changed, path)
                )
                outcomes.append(profile.model_dump_json())
            except ProfileErrors as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1], changed
