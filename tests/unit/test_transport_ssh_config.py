"""What ssh itself says about a host, and the names that its files have."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from disttui.runner.address import Address
from disttui.runner.errors import HostError, InputError
from disttui.runner.hosts.discovery import ssh_hosts
from disttui.runner.profile.fields import user_part
from disttui.runner.profile.sections import parse_host
from disttui.runner.transport.ssh_config import NamedHosts, hop_address, resolve, split, ssh_home
from tests.files import new_file, new_folder

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")

CONFIG = """\
# a comment
Include {folder}/more/*.conf
Host alias   # with a comment
  HostName = 10.0.0.9
  Port 2200
  User "somebody"
  IdentityFile "~/.ssh/%h and %r"
  IdentityFile %d/second
  IdentitiesOnly yes
  HostKeyAlias shared
  ConnectTimeout 7
  StrictHostKeyChecking accept-new
  UserKnownHostsFile {folder}/kh ~/kh2
Host behind
  ProxyJump u@gate:2222,inner
Host piped
  HostName target.example
  ProxyCommand connect --to "%h" %p %r %% # kept
Host direct *.direct
  ProxyJump none
  ProxyCommand none
  IdentityAgent none
  StrictHostKeyChecking off
  AddressFamily inet6
  PubkeyAuthentication no
  BatchMode yes
Host *.neg !bad.neg
  Port 77
Match all
  BindAddress 127.0.0.1
Host *
  User fallback
  GlobalKnownHostsFile /dev/null
"""
INCLUDED = """\
Host included
  HostName {name}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    new_file(tmp_path / "more" / "b.conf", INCLUDED.format(name="second"))
    (tmp_path / "more" / "a.conf").write_text(INCLUDED.format(name="first"))
    (tmp_path / "config").write_text(CONFIG.format(folder=tmp_path))
    return str(tmp_path / "config")


def test_values(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    alias = resolve(Address("alias"), config)
    assert (alias.hostname, alias.port, alias.user) == ("10.0.0.9", 2200, "somebody")
    assert alias.identity_files == (f"{ssh_home()}/.ssh/10.0.0.9 and somebody", f"{ssh_home()}/second")
    assert (alias.identities_only, alias.host_key_alias, alias.connect_timeout) == (True, "shared", 7.0)
    assert (alias.strict, alias.bind_address, alias.identity_agent) == ("accept-new", "127.0.0.1", "/run/agent")
    assert alias.user_known_hosts == (f"{tmp_path}/kh", f"{ssh_home()}/kh2")
    assert resolve(Address("behind"), config).proxy_jump == ("u@gate:2222", "inner")
    piped = resolve(Address("piped"), config)
    assert piped.left_to_ssh == "ProxyCommand"
    direct = resolve(Address("direct"), config)
    assert (direct.proxy_jump, direct.left_to_ssh, direct.identity_agent) == ((), "", None)
    assert (direct.strict, direct.public_key, direct.password_prompts) == ("no", False, 0)
    assert resolve(Address("included"), config).hostname == "first"


def test_lists_of_algorithms_are_those_of_ssh(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "Ciphers aes256-ctr,aes128-ctr\nMACs hmac-sha2-512\nKexAlgorithms ecdh-sha2-nistp256\n"
        "HostKeyAlgorithms rsa-sha2-512,ssh-ed25519\nPubkeyAcceptedAlgorithms ssh-ed25519\n"
        "RequiredRSASize 3072\nHashKnownHosts yes\nCheckHostIP yes\n"
        f"RevokedHostKeys {tmp_path}/revoked\nKnownHostsCommand /bin/echo '%H' x\n"
        "PreferredAuthentications publickey\n"
    )
    found = resolve(Address("a"), str(file))
    assert (found.ciphers, found.host_key_algorithms) == (("aes256-ctr", "aes128-ctr"), ("rsa-sha2-512", "ssh-ed25519"))
    assert (found.required_rsa_size, found.hash_known_hosts, found.check_host_ip) == (3072, True, True)
    assert (found.left_to_ssh, found.password) == ("KnownHostsCommand", False)


def test_a_list_of_algorithms_may_change_the_default(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Ciphers +3des-cbc\nMACs -hmac-sha1*,*-etm@openssh.com,umac-*\nKexAlgorithms ^ecdh-sha2-nistp521\n")
    found = resolve(Address("a"), str(file))
    assert {"aes128-ctr", "3des-cbc"} <= set(found.ciphers)
    assert found.macs == ("hmac-sha2-256", "hmac-sha2-512")
    assert found.key_exchanges[0] == "ecdh-sha2-nistp521"
    assert "curve25519-sha256" in found.key_exchanges


def test_without_the_ssh_program_one_error_says_so(
    config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="alias: the program ssh is not installed\n  → Install the OpenSSH"):
        resolve(Address("alias"), config)


def test_paths_of_known_hosts_with_spaces(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "my hosts")
    for name in ("known hosts", "second"):
        (folder / name).touch()
    file = tmp_path / "config"
    file.write_text(f'UserKnownHostsFile "{folder}/known hosts" "{folder}/second" {tmp_path}/missing ~/missing2\n')
    home = ssh_home()
    found = resolve(Address("a"), str(file)).user_known_hosts
    assert found == (f"{folder}/known hosts", f"{folder}/second", f"{tmp_path}/missing", f"{home}/missing2")


def test_a_negated_name_hides_only_what_it_matches(tmp_path: Path) -> None:
    file = new_file(tmp_path / "config", "Host gpu1 gpu2 cpu1 !cpu* !gpu[2] w*\n  HostName 10.0.0.1\n")
    assert NamedHosts(str(file)).hosts == {"gpu1": "10.0.0.1", "gpu2": "10.0.0.1"}


def test_include_inside_a_block_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "inner").write_text("Host other\n  Port 1\n")
    file = new_file(tmp_path / "config", f"Host a\n  Include {tmp_path}/inner\n  Port 2\nHost *\n  Port 3\n")
    assert resolve(Address("a"), str(file)).port == 2
    assert resolve(Address("b"), str(file)).port == 3


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=touch x", "", "a b", "a\nb", "$(id)", "a;b", "a`b`", "a'b", "a|b", "a\x00b", "a\\"]
)
def test_hostile_names_are_refused(config: str, host: str) -> None:
    with pytest.raises(InputError, match="not a valid host name"):
        resolve(Address(host), config)
    with pytest.raises(InputError, match="not a valid user name"):
        resolve(Address("alias", user=host or "-"), config)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing: the ssh configuration cannot be read"):
        resolve(Address("a"), str(tmp_path / "missing"))
    bad = new_file(tmp_path / "bad", 'Host a\nUser "open\n')
    with pytest.raises(InputError, match=r"bad:? ?(line )?2"):
        resolve(Address("a"), str(bad))
    bad.write_text(f"Include {bad}\n")
    with pytest.raises(InputError):
        resolve(Address("a"), str(bad))


@pytest.mark.parametrize(
    ("hop", "address"),
    [
        ("gate", Address("gate")),
        ("me@gate:2222", Address("gate", "me", 2222)),
        ("[::1]:2222", Address("::1", None, 2222)),
        ("me@corp.example@gate", Address("gate", "me@corp.example")),
        ("me@corp.example@[::1]:22", Address("::1", "me@corp.example", 22)),
        ("ssh://me@gate:22/", Address("gate", "me", 22)),
    ],
)
def test_hops(hop: str, address: Address) -> None:
    assert hop_address(hop) == address


def test_bad_hop() -> None:
    with pytest.raises(InputError, match="ProxyJump"):
        hop_address("a:b:c")


def test_an_include_that_leads_nowhere_costs_nothing_else(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / "config"
    file.write_text(f"Include ~no-such-user/x {tmp_path}/pipe {tmp_path} {tmp_path}/gone\nHost a\n  Port 7\n")
    assert [one.host for one in ssh_hosts(str(file)).candidates] == ["a"]


def test_files_that_include_each_other_again_and_again_end_soon(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(f"Host a\n  Include {file} {file} {file} {file}\n")
    found = ssh_hosts(str(file))
    assert [one.host for one in found.candidates] == ["a"]
    assert "more than 256 files" in found.problems[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CORP\\alice", ["CORP\\alice"]),
        ("gpu#1 b # note", ["gpu#1", "b"]),
        ("# note", []),
        ('"a b" c\\ d \'e"f\'', ["a b", "c d", 'e"f']),
        ('"a\\"b" x\\\\y', ['a"b', "x\\y"]),
        ("lab/gpu-c !old", ["lab/gpu-c", "!old"]),
    ],
)
def test_words_are_parted_as_ssh_does(text: str, words: list[str]) -> None:
    assert split(text) == words


def test_quotes_that_nothing_closes_are_refused() -> None:
    with pytest.raises(ValueError, match="closing"):
        split('"a b')


def test_a_user_of_a_windows_domain_keeps_the_backslash(tmp_path: Path) -> None:
    config = new_file(tmp_path / "config", "Host n1\n  User CORP\\alice\nHost gpu#1\n  HostName 10.0.0.1\n")
    assert resolve(Address("n1"), str(config)).user == "CORP\\alice"
    assert resolve(Address("gpu"), str(config)).hostname == "gpu"
    assert user_part("CORP\\alice") == "CORP\\alice"


def test_a_machine_of_a_windows_domain_keeps_its_dollar(tmp_path: Path) -> None:
    config = new_file(tmp_path / "config", "Host n1\n  User CORP\\n1$\n")
    assert resolve(Address("n1"), str(config)).user == "CORP\\n1$"
    with pytest.raises(InputError, match=r"'a b' is not a valid user name: .* contains spaces"):
        resolve(Address("n1", user="a b"), str(config))


@pytest.mark.parametrize("alias", ["lab/gpu-c", "gpu#1", "a!b", "a*b", "what?"])
def test_an_alias_may_hold_what_ssh_takes(tmp_path: Path, alias: str) -> None:
    config = new_file(tmp_path / "config", f"Host {alias}\n  HostName 10.0.0.7\n")
    assert parse_host(f"me@{alias}:22").endpoint == Address(alias, "me", 22)
    assert resolve(Address(alias), str(config)).hostname == "10.0.0.7"
    assert [one.host for one in ssh_hosts(str(config)).candidates] == ([] if set(alias) & set("*?") else [alias])
