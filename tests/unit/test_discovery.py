"""Hosts out of ssh configurations, hostfiles, inventories and typed text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttui.runner.errors import InputError
from disttui.runner.hosts.discovery import MOST, Discovered, find_all, flaw_of, read_file, ssh_hosts, typed_hosts
from tests.files import new_file, new_folder

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
    found = read_file(DATA / "hostfile.txt", ask=False)
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
    found = read_file(DATA / file, ask=False)
    assert names(found) == hosts
    assert not found.problems
    assert found.candidates[0].note.startswith(("lonely", "gpu01 · gpus"))


def _ansible(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = new_file(folder / "bin" / "ansible-inventory", f"#!/bin/sh\n{script}\n", 0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_ansible_is_asked_for_a_named_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ansible(tmp_path, monkeypatch, f"cat '{DATA / 'list.json'}'")
    assert names(read_file(DATA / "inventory.ini", ask=True)) == ["ada@10.0.0.1", "gpu02"]
    assert len(names(read_file(DATA / "inventory.ini", ask=False))) == 6
    _ansible(tmp_path, monkeypatch, "exit 1")
    assert len(names(read_file(DATA / "inventory.ini", ask=True))) == 6


def test_no_file_of_the_folder_is_run_by_ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executable inventory is a program to Ansible, and ansible.cfg of the current folder may name others."""
    asked = tmp_path / "asked"
    _ansible(tmp_path, monkeypatch, f"(pwd; env | grep ^ANSIBLE; echo $*) >{asked}; exit 1")
    here = new_folder(tmp_path / "project")
    monkeypatch.chdir(here)
    script = new_file(here / "inventory", "#!/bin/sh\necho '{}'\n", 0o755)
    find_all(str(DATA / "ssh" / "config"), {"ANSIBLE_INVENTORY": str(script)}, here)
    assert not asked.exists(), "what was not named is only parsed"
    read_file(Path("inventory"), ask=True)
    said = asked.read_text().splitlines()
    assert said[0] == "/" and said[-1] == f"-i {script} --list"
    assert {"ANSIBLE_CONFIG=/dev/null", "ANSIBLE_INVENTORY_ENABLED=ini,yaml"} < set(said)


def test_typed() -> None:
    found = typed_hosts(" node1, me@node2:2222;gpu[1-3]  node1 a|b [::1]:22")
    assert names(found) == ["node1", "me@node2:2222", "gpu1", "gpu2", "gpu3", "[::1]:22"]
    assert len(found.problems) == 1 and "'|'" in found.problems[0]
    assert typed_hosts("x[1-99999]").problems == ("'x[1-99999]' is not a range of at most 1,000 hosts",)
    assert len(typed_hosts(" ".join(f"h{n}" for n in range(MOST + 5))).candidates) == MOST
    assert "expected [IPv6 address]:port" in typed_hosts("[::1:22").problems[0]


def test_all_sources(home: Path, tmp_path: Path) -> None:
    here = new_folder(tmp_path / "project")
    (here / "hostfile").write_text("node9 slots=2\n")
    (here / "inventory.ini").write_text("[x]\nnode8\n")
    (here / "hosts.yml").write_text("{")
    found = find_all(str(DATA / "ssh" / "config"), {"ANSIBLE_INVENTORY": str(DATA / "inventory.yaml")}, here)
    by_source = {one.source: names(one) for one in found}
    assert by_source["hostfile"] == ["node9"] and by_source["inventory.ini"] == ["node8"]
    assert "ada@gpu01:2222" in by_source["inventory.yaml"] and by_source["hosts.yml"] == []


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_file(tmp_path / "none", ask=False)
    big = new_file(tmp_path / "big", b"x" * (1 << 20) + b"yz")
    with pytest.raises(InputError, match="1 MiB"):
        read_file(big, ask=False)


@given(st.text(), st.sampled_from([".txt", ".ini", ".yaml"]))
def test_any_text_gives_hosts_or_problems_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, text: str, suffix: str
) -> None:
    path = new_file(tmp_path_factory.mktemp("any") / f"file{suffix}", text.encode("utf-8", "surrogatepass"))
    found = read_file(path, ask=False)
    assert all(not flaw_of(one.host) for one in found.candidates)
    assert all(problem.isprintable() for problem in found.problems)
    assert all(not flaw_of(host) for host in names(typed_hosts(text)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("g0: &g0 {hosts: {node1: {}}}\n" + "".join(
            f"g{n}: &g{n} {{children: {{a: *g{n - 1}, b: *g{n - 1}}}}}\n" for n in range(1, 32)
        ), "aliases included"),
        ("m0: &m0 {a: 1}\nall: {hosts: {node1: {<<: [*m0, *m0]}}}\n", "merge keys"),
        ("all: {hosts: {node1: {ansible_port: " + "59:" * 3000 + "59}}}\n", "too many colons"),
        ("all: {hosts: {node1: {ansible_port: 123456}}}\n", "expected a port"),
    ],
)  # fmt: skip
def test_yaml_that_multiplies_is_refused(home: Path, text: str, problem: str) -> None:
    path = new_file(home / "inventory.yaml", text)
    found = read_file(path, ask=False)
    assert not names(found) and problem in found.problems[-1]


@pytest.mark.parametrize("line", ["n[1-1]" * 600, "n[1-1000]" * 2, "n[1-2]" * 20, "n[1-1000]" + "x" * 999_000])
def test_ranges_are_counted_before_they_are_made(home: Path, line: str) -> None:
    path = new_file(home / "hostfile", f"{line}\nnode[1-2][7-8]\n")
    found = read_file(path, ask=False)
    assert names(found) == ["node17", "node18", "node27", "node28"]
    [problem] = found.problems
    assert "or is too long" in problem


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[1-2,4]", "n1 n2 n4"),
        ("c[1,3]-[1,2] m1", "c1-1 c1-2 c3-1 c3-2 m1"),
        ("cpn-[10-11]-[01,03]", "cpn-10-01 cpn-10-03 cpn-11-01 cpn-11-03"),
        ("n[1-2],m1;x", "n1 n2 m1 x"),
        ("n[0-4/2]", "n0 n2 n4"),
        ("db-[a:c]", "db-a db-b db-c"),
        ("user@[fe80::1]:22, [::1]", "user@[fe80::1]:22 [::1]"),
        ("user@n[1-2]:2222", "user@n1:2222 user@n2:2222"),
    ],
)
def test_node_lists_of_slurm_and_clustershell(text: str, hosts: str) -> None:
    found = typed_hosts(text)
    assert ([one.host for one in found.candidates], found.problems) == (hosts.split(), ())


@pytest.mark.parametrize("word", ["n[1-2", "n]", "n[a-b]", "n[]", "n[1-2]]", "n[[1]]", "n[c:a]"])
def test_a_node_list_that_is_not_understood_is_quoted(word: str) -> None:
    found = typed_hosts(word)
    assert not found.candidates and repr(word) in found.problems[0]
