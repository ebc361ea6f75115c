"""Profiles that are made of several files: what goes over what, where each value comes from, and what is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from disttui.runner.cli.app import cli
from disttui.runner.errors import InputError
from disttui.runner.profile import composition, problems
from disttui.runner.profile.load import load
from disttui.runner.profile.schema import Profile
from tests.files import new_file

BASE = """\
disttui: 1
name: base
description: what all have
hosts:
  - node1
  - {host: node2, gpus: [0, 1], env: {A: "1", B: "2"}}
num_processes: 2
env: {X: base, Y: base}
job:
  script: train.py
  args: [--steps, "${var:steps=1000}", --lr, "${var:lr=0.1}"]
launch: {restarts: 1, grace: 5}
"""


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a shared library that is named team; there is a config, and the user's own library."""
    (tmp_path / "config/disttui/profiles").mkdir(parents=True)
    folder = tmp_path / "team"
    (folder / "inventory").mkdir(parents=True)
    (tmp_path / "config/disttui/config.yaml").write_text(f"libraries: [{{name: team, folder: {folder}}}]\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("DISTTUI_PROFILES", raising=False)
    (folder / "base.yaml").write_text(BASE)
    return folder


def put(folder: Path, name: str, text: str) -> Path:
    return new_file(folder / name, text)


def written(profile: Profile) -> dict[str, object]:
    return profile.as_written()


def test_a_profile_goes_over_what_it_extends_key_by_key(team: Path) -> None:
    path = put(team, "mine.yaml", """\
disttui: 1
extends: base
hosts:
  - {host: node2, gpus: [3], env: {B: ~, C: "3"}}
  - node3
env: {Y: mine}
job: {args+: [--fast]}
launch: {grace: ~}
""")  # fmt: skip
    profile = load(path)
    assert profile.name == "mine" and profile.description == "", "these say something of one profile alone"
    assert [host.name for host in profile.hosts] == ["node1", "node2", "node3"]
    assert profile.hosts[1].gpus == (3,) and profile.hosts[1].env == {"A": "1", "C": "3"}
    assert profile.env == {"X": "base", "Y": "mine"} and profile.num_processes == 2
    assert profile.job.args == ("--steps", "1000", "--lr", "0.1", "--fast")
    assert profile.launch.restarts == 1 and profile.launch.grace == 10
    assert "extends" not in written(profile) and [each.path for each in profile.read_from] == [str(team / "base.yaml")]
    path = put(team, "other.yaml", "extends: [base, mine]\nhosts=: [local]\njob: {module: pkg.train, args: [a]}\n")
    profile = load(path)
    assert [host.name for host in profile.hosts] == ["local"] and profile.env["Y"] == "mine"
    assert (profile.job.module, profile.job.script, profile.job.args) == ("pkg.train", None, ("a",))


def test_variables_have_defaults_and_are_set(team: Path) -> None:
    path = put(team, "mine.yaml", "extends: base\nvar: {lr: 0.2}\n")
    assert load(path).job.args[1::2] == ("1000", "0.2")
    assert load(path, ["var.steps=5", "var.lr=3e-4"]).job.args[1::2] == ("5", "3e-4")
    assert "var" not in written(load(path))
    with pytest.raises(
        InputError, match=r"--set var.stesp=…: nothing uses the variable 'stesp', did you mean 'steps'\?"
    ):
        load(path, ["var.stesp=5"])
    need = put(team, "need.yaml", BASE.replace("=1000", ""))
    with pytest.raises(
        InputError, match=r"need.yaml:11:19: the variable 'steps' has no value, expected --set var.steps=…"
    ):
        load(need)
    assert load(need, ["var.steps=7"]).job.args[1] == "7"
    shell = put(team, "shell.yaml", BASE.replace("train.py", "${var:-x}${var:0:3}"))
    assert load(shell).job.script == "${var:-x}${var:0:3}", "a shell's own"
    with pytest.raises(InputError, match="expected only as the value of an env variable"):
        load(path, ["var.steps=${env:HOME}"])


def test_a_variable_that_is_a_list_is_as_many_items(team: Path) -> None:
    mine = "disttui: 1\nhosts: [local]\nvar: {more: [--a, b c]}\njob: {script: a.py, args: [--x, '${var:more}']}\n"
    path = put(team, "mine.yaml", mine)
    assert load(path).job.args == ("--x", "--a", "b c") and load(path, ["var.more=[]"]).job.args == ("--x",)
    assert load(path, ["var.more=--b"]).job.args == ("--x", "--b")
    assert load(put(team, "all.yaml", mine.replace("[--x, '${var:more}']", "'${var:more}'"))).job.args[0] == "--a"
    inside = put(team, "inside.yaml", mine.replace("'${var:more}'", "'x${var:more}'"))
    with pytest.raises(InputError, match=r"inside.yaml:4:33: the variable 'more' is a list, .* expected it as a whole"):
        load(inside)
    with pytest.raises(InputError, match="expected only as the value of an env variable"):
        load(path, ["var.more=[a, '${env:HOME}']"])
    with pytest.raises(InputError, match=r"'more' is neither a single value .* expected text, or \[several, texts\]"):
        load(path, ["var.more=[[a]]"])
    with pytest.raises(InputError, match="with its variables the profile is larger than 1 MiB"):
        load(
            put(team, "large.yaml", mine.replace("'${var:more}'", "'${var:more}', " * 2000)),
            [f"var.more=[{'x' * 600}]"],
        )


def test_hosts_come_from_an_inventory(team: Path) -> None:
    put(
        team,
        "inventory/lab.yaml",
        "hosts:\n  - {host: a, gpus: [0]}\n  - b\n  - {host: 10.0.0.3, name: c}\nquotas: {}\n",
    )
    path = put(team, "mine.yaml", "extends: base\nhosts=: []\n")
    put(team, "inv.yaml", "disttui: 1\nhosts: {inventory: lab, only: [c, a]}\njob: {builtin: bytegpt}\n")
    assert [host.name for host in load(team / "inv.yaml").hosts] == ["c", "a"]
    mine = put(
        team.parent / "config/disttui/profiles",
        "x.yaml",
        "disttui: 1\nhosts: {inventory: team/lab}\njob: {builtin: bytegpt}\n",
    )
    assert [host.name for host in load(mine).hosts] == ["a", "b", "c"]
    over = put(team, "over.yaml", "extends: inv\nhosts: [{host: a, gpus: [7]}]\n")
    assert load(over).hosts[1].gpus == (7,)
    for text, message in (
        ("{inventory: lap}", r"inv.yaml:2:20: inventory 'lap' not found"),
        ("{inventory: lab, only: [d]}", r"inv.yaml:2:32: the inventory has no host 'd'"),
        ("{inventory: ../x}", r"inv.yaml:2:20: '../x' is not a valid file name"),
        ("{inventory: lab, x: 1}", r"inv.yaml:2:25: unknown key 'x'"),
    ):
        put(team, "inv.yaml", f"disttui: 1\nhosts: {text}\njob: {{builtin: bytegpt}}\n")
        with pytest.raises(InputError, match=message):
            load(team / "inv.yaml")
    with pytest.raises(InputError, match="no hosts"):
        load(path)


def test_no_host_is_lost_among_others_of_its_name(team: Path) -> None:
    def hosts(text: str) -> list[tuple[str, int | None, Sequence[int] | None]]:
        found = load(put(team, "over.yaml", f"extends: two\n{text}\n"))
        return [(host.host, host.port, host.gpus) for host in found.hosts]

    twins = "hosts: [{host: a, port: 1}, {host: a, port: 2}]\n"
    put(team, "two.yaml", f"disttui: 1\n{twins}job: {{builtin: bytegpt}}\n")
    assert hosts("hosts: [b]") == [("a", 1, None), ("a", 2, None), ("b", None, None)]
    assert hosts("hosts: [{host: a, port: 2, gpus: [3]}]") == [("a", 1, None), ("a", 2, (3,))]
    with pytest.raises(InputError, match=r"over.yaml:2:9: 2 hosts are named 'a', name each in its file"):
        hosts("hosts: [{host: a, gpus: [3]}]")
    put(team, "two.yaml", "disttui: 1\nhosts: [b]\njob: {builtin: bytegpt}\n")
    assert hosts(twins) == [("b", None, None), ("a", 1, None), ("a", 2, None)]
    put(team, "inventory/twins.yaml", twins)
    with pytest.raises(InputError, match=r"over.yaml:2:34: the inventory has 2 hosts 'a', name each of them"):
        hosts("hosts: {inventory: twins, only: [a]}")


def test_a_host_with_its_login_in_one_word_is_found_by_its_name(team: Path) -> None:
    config = team.parent / "config/disttui"
    put(team, "one.yaml", 'disttui: 1\nhosts: [alice@node1, "node2:2222", local]\njob: {builtin: bytegpt}\n')
    found = load(put(team, "over.yaml", "extends: one\nhosts: [{host: node1, gpus: [0]}, {host: node2, gpus: [1]}]\n"))
    logins = [(host.host, host.user, host.port, host.gpus) for host in found.hosts]
    assert logins == [("node1", "alice", None, (0,)), ("node2", None, 2222, (1,)), ("local", None, None, None)]
    found = load(put(team, "over.yaml", "extends: one\nhosts: [bob@node1, alice@node1]\n"))
    assert [host.user for host in found.hosts] == ["alice", None, None, "bob"], "bob's is another host"
    found = load(
        put(team, "over.yaml", "extends: one\nhosts: [{host: 'node2:1', gpus: [0]}, {host: node1, port: 3}]\n")
    )
    assert [(host.host, host.port) for host in found.hosts] == [
        ("node1", 3),
        ("node2", 2222),
        ("local", None),
        ("node2", 1),
    ]
    put(team, "inventory/mixed.yaml", 'hosts: [node1, alice@node1, {host: "bob@node2", gpus: [0]}]\n')
    text = "hosts: {inventory: mixed, only: [node1, 'bob@node2', alice@node1]}\n"
    found = load(put(team, "over.yaml", f"disttui: 1\n{text}job: {{builtin: bytegpt}}\n"))
    assert [host.user for host in found.hosts] == [None, "bob", "alice"]
    put(config, "personal.yaml", "hosts:\n  '*': {user: carol, workdir: /w}\n  node2: {port: 1}\n")
    found = load(team / "one.yaml")
    assert [(host.user, host.port) for host in found.hosts] == [("carol", None), ("carol", 1), (None, None)]
    assert {host.workdir for host in found.hosts} == {"/w"}


def test_personal_settings_go_over_all_and_stay_with_the_user(team: Path) -> None:
    config = team.parent / "config/disttui"
    put(
        config,
        "personal.yaml",
        "python: ~/venv/bin/python\nhosts:\n  '*': {user: alice}\n  node2: {port: 2222}\n  gone: {port: 1}\n",
    )
    profile = load(team / "base.yaml")
    assert [(host.user, host.port) for host in profile.hosts] == [("alice", None), ("alice", 2222)]
    assert profile.hosts[0].python == "~/venv/bin/python"
    assert load(team / "base.yaml", ["hosts.0.user=root"]).hosts[0].user == "root"
    put(config, "personal.yaml", "hosts:\n  node1: {gpus: [1]}\n")
    with pytest.raises(InputError, match=r"personal.yaml:2:11: unknown key 'gpus', expected one of user, port"):
        load(team / "base.yaml")
    put(config, "personal.yaml", "hosts:\n  node1: {port: x}\n")
    with pytest.raises(InputError, match=r"personal.yaml:2:17: port: 'x'"):
        load(team / "base.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: mine", r"mine.yaml:1:10: 'mine' extends itself: mine.yaml → mine.yaml"),
        ("extends: loop", r"loop.yaml:1:10: 'mine' extends itself: mine.yaml → loop.yaml → mine.yaml"),
        ("extends: bse", r"mine.yaml:1:10: profile 'bse' not found"),
        ("extends: ../secret", r"mine.yaml:1:10: '../secret' is not a valid file name"),
        ("extends: /etc/passwd", r"mine.yaml:1:10: '/etc/passwd' is not a valid file name"),
        ("extends: link", r"mine.yaml:1:10: '.*link.*' leads out of this folder"),
        ("extends: own/private", r"mine.yaml:1:10: profile 'own/private' not found, a shared profile can"),
        ("extends: private", r"mine.yaml:1:10: profile 'private' not found, a shared profile can only"),
        ("extends: {a: b}", r"mine.yaml:1:1: extends is not a name"),
        ("extends: worse", r"worse.yaml:2:10: unknown key 'stepz'"),
        ("extends: broken", r"broken.yaml:2:1: not valid YAML"),
        ("extends: base\njob: {args: [a], args+: [b]}", r"mine.yaml:2:18: 'args' and 'args\+' in one profile"),
        ("extends: deep1", r"deep8.yaml:1:10: more than 8 profiles extend one another"),
    ],
)  # fmt: skip
def test_composition_error_names_file_and_line(team: Path, text: str, message: str) -> None:
    put(team.parent, "secret.yaml", BASE)
    put(team.parent / "config/disttui/profiles", "private.yaml", BASE)
    (team / "link.yaml").symlink_to(team.parent / "secret.yaml")
    put(team, "loop.yaml", "extends: mine\n")
    put(team, "worse.yaml", "extends: base\nlaunch: {stepz: 1}\n")
    put(team, "broken.yaml", "job: {\n")
    for number in range(1, 10):
        put(team, f"deep{number}.yaml", f"extends: deep{number + 1}\n")
    with pytest.raises(InputError, match=message) as caught:
        load(put(team, "mine.yaml", text + "\n"))
    assert caught.value.exit_code == 2


def test_huge_team_library_file_does_not_slow_down_lists(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[str]()

    def counted(name: str, of: Any) -> None:
        work = getattr(of, name)

        def call(*args: Any) -> Any:
            calls[name] += 1
            return work(*args)

        monkeypatch.setattr(of, name, call)

    counted("_elsewhere", composition._Assembler)
    counted("_host_name", composition)
    with pytest.raises(InputError, match="names more than 64 other files"):
        load(put(team, "names.yaml", f"extends: [{', '.join(f'a{at}' for at in range(1000))}]\n"))
    assert calls["_elsewhere"] == 64
    for name, more in (("many", ""), ("more", "extends: many\n")):
        hosts = ", ".join(f"{name}{at}" for at in range(1000))
        path = put(team, f"{name}.yaml", f"disttui: 1\n{more}hosts: [{hosts}]\njob: {{command: [x]}}\n")
    with pytest.raises(InputError, match="2,000 hosts, expected at most 1,024"):
        load(path)
    assert calls["_host_name"] < 5000  # not each with each

    counted("near", problems)
    put(team, "inventory/lab.yaml", f"hosts: [{', '.join(f'h{at}' for at in range(900))}]\n")
    unknown, unused = (", ".join(f"g{at}{more}" for at in range(900)) for more in ("", ": x"))
    for name, text in (
        ("only", f"hosts: {{inventory: lab, only: [{unknown}]}}"),
        ("unused", f"hosts: [a]\nvar: {{{unused}}}"),
    ):
        path = put(team, f"{name}.yaml", f"disttui: 1\n{text}\njob: {{command: [x]}}\n")
        with pytest.raises(InputError, match=r"and 85\d more") as caught:
            load(path)
        assert len(str(caught.value)) < 50_000
    assert calls["near"] == 100


def test_a_profile_of_a_run_extends_nothing(team: Path) -> None:
    """What comes from a host is text, and reads no file of this machine."""
    from disttui.runner.profile.load import parse

    with pytest.raises(InputError, match="unknown key 'extends'"):
        parse(BASE + "extends: base\n", "profile of two-7f3a")


def test_every_value_is_shown_with_its_file_and_line(team: Path) -> None:
    put(team, "mine.yaml", "extends: base\nlaunch:\n  grace: 9\njob:\n  args+: [--fast]\n")
    put(team.parent / "config/disttui", "personal.yaml", "hosts:\n  node1:\n    user: alice\n")
    for words in (["library", "show", "team/mine"], ["profile", "validate", "--resolved", "team/mine"]):
        result = CliRunner().invoke(cli, [*words, "--set", "var.steps=5"])
        assert result.exit_code == 0
        lines = [re.sub(" +", " ", line.strip()) for line in result.output.splitlines()]
        for line in (
            "launch.restarts 1 # team/base.yaml:12",
            "launch.grace 9 # team/mine.yaml:3",
            f"hosts.0.user alice # {team.parent}/config/disttui/personal.yaml:3",
            "hosts.1.gpus [0, 1] # team/base.yaml:6",
            'job.args.1 "5" # team/base.yaml:11',
            "job.args.4 --fast # team/mine.yaml:5",
        ):
            assert line in lines, result.output
    assert "extends: base" in CliRunner().invoke(cli, ["library", "show", "--text", "mine"]).output
