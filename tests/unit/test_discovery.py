"""Hosts out of ssh configurations, hostfiles, inventories and typed text."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttui.runner.errors import InputError
from disttui.runner.hosts.discovery import Discovered, find_all, read_file, ssh_hosts, typed_hosts
from disttui.runner.hosts.discovery.candidate import MOST, flaw_of

DATA = Path(__file__).parents[1] / "data" / "discovery"


def names(found: Discovered) -> list[str]:
    return [one.host for one in found.candidates]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose .ssh is the example."""
    (tmp_path / ".ssh").symlink_to(DATA / "ssh")
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path)))
    monkeypatch.setenv("PATH", "/nowhere")
    return tmp_path


def test_ssh_config_with_includes(home: Path) -> None:
    found = ssh_hosts(str(DATA / "ssh" / "config"))
    assert names(found) == ["lab1", "gpu-a", "gpu-b", "quoted"]
    assert [one.note for one in found.candidates] == ["lab1.example.org", "10.0.0.1", "10.0.0.1", ""]
    assert len(found.problems) == 1 and "bad$(touch)name" in found.problems[0]


def test_a_missing_ssh_config_has_no_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path)))
    assert ssh_hosts().problems == ()
    assert "nowhere" in ssh_hosts(str(tmp_path / "nowhere")).problems[0]


def test_hostfile() -> None:
    found = read_file(DATA / "hostfile.txt")
    assert names(found) == ["node1", "node2", "node3", "node04", "node05", "node06"]
    assert [one.slots for one in found.candidates] == [4, 2, 6, 1, 1, 1]
    assert any("hostfile.txt:6" in problem for problem in found.problems)
    assert any("begins with '-'" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("file", "hosts"),
    [
        ("inventory.ini", ["10.1.0.9", "ada@gpu01:2222", "ada@gpu02:2222", "ada@gpu03:2222", "gpu01", "local"]),
        ("inventory.yaml", ["10.1.0.9", "ada@gpu01:2222", "gpu02", "[fd00::3]:22"]),
        ("list.json", ["ada@10.0.0.1", "gpu02"]),
    ],
)
def test_ansible_inventories(home: Path, file: str, hosts: list[str]) -> None:
    found = read_file(DATA / file)
    assert names(found) == hosts
    assert not found.problems
    assert found.candidates[0].note.startswith(("lonely", "gpu01 · gpus"))


def test_ansible_inventory_is_asked_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ansible-inventory"
    program.write_text(f"#!/bin/sh\ncat {DATA / 'list.json'}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert names(read_file(DATA / "inventory.ini")) == ["ada@10.0.0.1", "gpu02"]
    program.write_text("#!/bin/sh\nexit 1\n")
    assert len(names(read_file(DATA / "inventory.ini"))) == 6


def test_typed() -> None:
    found = typed_hosts(" node1, me@node2:2222;gpu[1-3]  node1 a|b [::1]:22")
    assert names(found) == ["node1", "me@node2:2222", "gpu1", "gpu2", "gpu3", "[::1]:22"]
    assert len(found.problems) == 1 and "'|'" in found.problems[0]
    assert typed_hosts("x[1-99999]").problems == ("'x[1-99999]' is not a range of at most 1,000 hosts",)
    assert len(typed_hosts(" ".join(f"h{n}" for n in range(MOST + 5))).candidates) == MOST


def test_all_sources(home: Path, tmp_path: Path) -> None:
    here = tmp_path / "project"
    here.mkdir()
    (here / "hostfile").write_text("node9 slots=2\n")
    (here / "inventory.ini").write_text("[x]\nnode8\n")
    (here / "hosts.yml").write_text("{")
    found = find_all(str(DATA / "ssh" / "config"), {"ANSIBLE_INVENTORY": str(DATA / "inventory.yaml")}, here)
    by_source = {one.source: names(one) for one in found}
    assert by_source["hostfile"] == ["node9"] and by_source["inventory.ini"] == ["node8"]
    assert "ada@gpu01:2222" in by_source["inventory.yaml"] and by_source["hosts.yml"] == []


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_file(tmp_path / "none")
    big = tmp_path / "big"
    big.write_bytes(b"x" * (1 << 20) + b"yz")
    with pytest.raises(InputError, match="1 MiB"):
        read_file(big)


@given(st.text(), st.sampled_from([".txt", ".ini", ".yaml"]))
def test_any_text_gives_hosts_or_problems_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, text: str, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("any") / f"file{suffix}"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    found = read_file(path)
    assert all(not flaw_of(one.host) for one in found.candidates)
    assert all(problem.isprintable() for problem in found.problems)
    assert all(not flaw_of(host) for host in names(typed_hosts(text)))


def test_an_inventory_whose_aliases_multiply_ends_soon(home: Path) -> None:
    levels = "".join(f"g{n}: &g{n} {{children: {{a: *g{n - 1}, b: *g{n - 1}}}}}\n" for n in range(1, 32))
    path = home / "inventory.yaml"
    path.write_text("g0: &g0 {hosts: {node1: {}}}\n" + levels)
    found = read_file(path)
    assert names(found) == ["node1"]
    assert any("more than 100,000 entries, aliases included" in problem for problem in found.problems)


def test_an_inventory_whose_merged_keys_multiply_ends_soon(home: Path) -> None:
    levels = "".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}\n" for n in range(1, 12))
    path = home / "inventory.yaml"
    path.write_text("m0: &m0 {ansible_port: 22}\n" + levels + "all: {hosts: {node1: {<<: *m11, ansible_port: 2222}}}\n")
    assert names(read_file(path)) == ["node1:2222"]
