"""known_hosts: what OpenSSH writes is read, what is broken costs one line."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disttui.runner.transport.known_hosts import KeyStatus, KnownHosts, append, fingerprint, lookup_name, parse
from tests.files import new_file
from tests.unit.sshd import new_key, public, ssh_keygen


class Key:
    def __init__(self, path: Path, kind: str = "ed25519") -> None:
        self.path = new_key(path, kind)
        self.line = " ".join(public(path).decode().split()[:2])
        self.kind, text = self.line.split()
        self.blob = base64.b64decode(text)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[Key]:
    folder = tmp_path_factory.mktemp("keys")
    return [Key(folder / "a"), Key(folder / "b"), Key(folder / "c", "rsa"), Key(folder / "d", "ecdsa")]


def check(tmp_path: Path, text: str, name: str, key: Key) -> tuple[KeyStatus, int | None]:
    file = new_file(tmp_path / "known_hosts", text)
    finding = KnownHosts([str(file)]).check(name, key.kind, key.blob)
    return finding.verdict, finding.entry.line if finding.entry else None


@pytest.mark.parametrize(
    ("hosts", "name", "matches"),
    [
        ("node1", "node1", True),
        ("node1", "node2", False),
        ("Node1,10.0.0.1", "10.0.0.1", True),
        ("node1", lookup_name("NODE1", 22, None), True),
        ("*.lab,!bad.lab", "good.lab", True),
        ("*.lab,!bad.lab", "bad.lab", False),
        ("!bad.lab,*.lab", "bad.lab", False),
        ("node?", "node7", True),
        ("node?", "node77", False),
        ("[node1]:2222", lookup_name("node1", 2222, None), True),
        ("[node1]:2222", lookup_name("node1", 2223, None), False),
        ("node1", lookup_name("node1", 2222, None), True),  # as ssh: the bare name counts for every port
        ("[node1]:*", lookup_name("node1", 2222, None), True),
        ("n[ab]", "na", False),  # no character classes
        ("n.de", "node", False),
        ("other", lookup_name("node1", 2222, "other"), True),
    ],
)
def test_patterns(tmp_path: Path, keys: list[Key], hosts: str, name: str, matches: bool) -> None:
    expected = KeyStatus.KNOWN if matches else KeyStatus.UNKNOWN
    assert check(tmp_path, f"{hosts} {keys[0].line} comment\n", name, keys[0])[0] is expected


def test_hashed_by_ssh_keygen(tmp_path: Path, keys: list[Key]) -> None:
    file = new_file(tmp_path / "known_hosts", f"node1 {keys[0].line}\n[node2]:2222 {keys[1].line}\n")
    ssh_keygen("-H", "-f", str(file))
    assert b"node1" not in file.read_bytes()
    known = KnownHosts([str(file)])
    assert known.check("node1", keys[0].kind, keys[0].blob).verdict is KeyStatus.KNOWN
    assert known.check("[node2]:2222", keys[1].kind, keys[1].blob).verdict is KeyStatus.KNOWN
    assert known.check("node1", keys[1].kind, keys[1].blob).verdict is KeyStatus.CHANGED


def test_changed_points_at_the_line(tmp_path: Path, keys: list[Key]) -> None:
    text = f"# mine\nother {keys[0].line}\nnode1 {keys[2].line}\nnode1 {keys[1].line}\n"
    assert check(tmp_path, text, "node1", keys[0]) == (KeyStatus.CHANGED, 4)
    # Of another type than all that are known: still no host that we know.
    assert check(tmp_path, text, "node1", keys[3]) == (KeyStatus.CHANGED, 3)


def test_another_key_of_the_bare_host_says_nothing_about_a_port(tmp_path: Path, keys: list[Key]) -> None:
    text = f"node1 {keys[0].line}\n"
    assert check(tmp_path, text, "[node1]:40012", keys[0])[0] is KeyStatus.KNOWN
    assert check(tmp_path, text, "[node1]:40012", keys[1])[0] is KeyStatus.UNKNOWN
    assert check(tmp_path, text + f"[node1]:40012 {keys[0].line}\n", "[node1]:40012", keys[1]) == (KeyStatus.CHANGED, 2)


def test_revoked_goes_before_known(tmp_path: Path, keys: list[Key]) -> None:
    text = f"node1 {keys[0].line}\n@revoked * {keys[0].line}\n"
    assert check(tmp_path, text, "node1", keys[0]) == (KeyStatus.REVOKED, 2)
    assert check(tmp_path, text, "node1", keys[1])[0] is KeyStatus.CHANGED
    assert check(tmp_path, f"@revoked * {keys[0].line}\n", "[node1]:2222", keys[0])[0] is KeyStatus.REVOKED


def test_bad_lines_cost_only_themselves(tmp_path: Path, keys: list[Key]) -> None:
    file = tmp_path / "known_hosts"
    kind, text = keys[0].line.split()
    file.write_bytes(
        b"\x00\xff\xfe garbage\n"
        b"node1 ssh-ed25519\n"
        b"node1 ssh-ed25519 not*base64\n"
        b"node1 ssh-rsa " + text.encode() + b"\n"
        b"@unheard-of node1 " + keys[0].line.encode() + b"\n"
        b"|1|x|y|z " + keys[0].line.encode() + b"\n"
        b"\n   \n# a comment\n"
        b"@cert-authority *.lab " + keys[1].line.encode() + b"\n"
        b"node1 " + keys[0].line.encode() + b"\r\n"
    )
    known = KnownHosts([str(file), str(tmp_path / "missing")])
    assert [bad.line for bad in known.bad] == [1, 2, 3, 4, 5, 6]
    assert known.check("node1", kind, keys[0].blob).verdict is KeyStatus.KNOWN
    assert known.check("x.lab", kind, keys[0].blob).verdict is KeyStatus.UNKNOWN
    assert (known.has_authority("x.lab"), known.has_authority("node1")) == (True, False)


def test_types_in_the_order_of_the_file(tmp_path: Path, keys: list[Key]) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"node1 {keys[2].line}\nnode1 {keys[0].line}\n@revoked node1 {keys[3].line}\n")
    assert KnownHosts([str(file)]).key_types("node1") == ["ssh-rsa", "ssh-ed25519"]


def test_fingerprint_is_that_of_openssh(keys: list[Key]) -> None:
    for key in keys:
        assert fingerprint(key.blob) in ssh_keygen("-lf", f"{key.path}.pub").split()


def test_append(tmp_path: Path, keys: list[Key]) -> None:
    file = tmp_path / "new" / "known_hosts"
    append(str(file), "node1", keys[0].kind, keys[0].blob)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.write_text(file.read_text().rstrip("\n"))  # an editor that leaves no newline at the end
    append(str(file), "[node2]:2222", keys[1].kind, keys[1].blob)
    assert file.read_text().splitlines() == [f"node1 {keys[0].line}", f"[node2]:2222 {keys[1].line}"]
    assert "found" in ssh_keygen("-F", "[node2]:2222", "-f", str(file))


_WORDS = st.sampled_from(
    [
        b"@revoked",
        b"@cert-authority",
        b"node1",
        b"!*",
        b"[n]:22",
        b"|1|",
        b"|1|YQ==|YQ==",
        b"ssh-rsa",
        b"AAAA",
        b"\n",
        b"#",
    ]
)


@given(st.lists(st.one_of(_WORDS, st.binary(max_size=12)), max_size=30).map(b" ".join), st.text(max_size=8))
@example(b"* ssh-ed25519 /////w==", "n")
def test_no_content_raises(data: bytes, name: str) -> None:
    entries, bad = parse("known_hosts", data)
    for entry in entries:
        entry.names(name.encode("utf-8", "replace").decode())
    assert len(entries) + len(bad) <= data.count(b"\n") + 1
