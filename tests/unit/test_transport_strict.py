"""Never looser than ssh: odd servers and strict settings, each case beside the ssh program itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from disttui.runner.address import Address
from disttui.runner.errors import HostError
from disttui.runner.transport import RefusePrompts
from disttui.runner.transport.base import NeedsSshError
from disttui.runner.transport.connector import HostConnector
from disttui.runner.transport.ssh import SshConnector
from tests.files import new_file
from tests.unit.sshd import USER, Place, Sshd, new_key, public, ssh_keygen
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")


class World:
    """Servers with odd settings, and keys, shared by all cases of this module."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder)
        self.folder = folder
        self.authority = new_key(folder / "authority")
        self.other_authority = new_key(folder / "other_authority")
        short = new_key(folder / "short_key", "rsa", rsa_bits=1024)
        long = new_key(folder / "long_key", "rsa")
        sshd = self.place.sshd
        self.servers: dict[str, Sshd] = {
            "plain": sshd("plain"),
            "old": sshd("old", "Ciphers 3des-cbc\nMACs hmac-md5"),
            "cbc": sshd("cbc", "Ciphers aes256-cbc\nMACs hmac-sha2-256"),
            "sha1": sshd("sha1", "HostKeyAlgorithms ssh-rsa", long),
            "short": sshd("short", "RequiredRSASize 1024", short),
            "group14": sshd("group14", "KexAlgorithms diffie-hellman-group14-sha1"),
            "certified": self._certified("certified", "127.0.0.1,shared"),
            "elsewhere": self._certified("elsewhere", "other.host"),
            "wild": self._certified("wild", "127.0.0.*"),
            "expired": self._certified("expired", "127.0.0.1", "-V", "20200101:20200102"),
            "users": self._certified("users", "127.0.0.1", host=False),
        }

    def _certified(self, name: str, principals: str, *options: str, host: bool = True) -> Sshd:
        key = new_key(self.folder / f"{name}_key")
        kind = ["-h"] if host else []
        ssh_keygen("-q", "-s", str(self.authority), *kind, "-I", name, "-n", principals, *options, f"{key}.pub")
        return self.place.sshd(name, f"HostCertificate {key}-cert.pub", key)

    def line(self, key: Path, hosts: str = "*", marker: str = "") -> str:
        return f"{marker} {hosts} {public(key).decode()}".lstrip()

    def config(self, case: Case) -> str:
        server = self.servers[case.server]
        block = server.block("alias", "".join(f"  {line}\n" for line in case.settings(self, server)))
        known = case.known(self, server) if case.known is not None else server.known()
        return self.place.write(block, trusted=known)


@dataclass(frozen=True)
class Case:
    name: str
    server: str
    accepted: bool
    settings: Callable[[World, Sshd], list[str]] = lambda world, server: []
    known: Callable[[World, Sshd], str] | None = None
    """The content of known_hosts, None: the server's key."""
    says: str = ""
    """What a refusal names."""


def with_setting(*lines: str) -> Callable[[World, Sshd], list[str]]:
    return lambda world, server: list(lines)


def revoked_list(world: World, server: Sshd) -> list[str]:
    file = new_file(world.folder / "revoked list", b"# lost\n" + public(server.key))
    return [f'RevokedHostKeys "{file}"']


def revoked_authority(world: World, server: Sshd) -> list[str]:
    file = new_file(world.folder / "revoked_authority", public(world.authority))
    return [f"RevokedHostKeys {file}"]


def revocation_list(world: World, server: Sshd) -> list[str]:
    file = world.folder / "krl"
    ssh_keygen("-q", "-k", "-f", str(file), f"{server.key}.pub")
    return [f"RevokedHostKeys {file}"]


def others_revocation_list(world: World, server: Sshd) -> list[str]:
    file = world.folder / "other_krl"
    ssh_keygen("-q", "-k", "-f", str(file), f"{world.other_authority}.pub")
    return [f"RevokedHostKeys {file}"]


def known_hosts_command(world: World, server: Sshd) -> list[str]:
    file = new_file(world.folder / "printed", server.known())
    return [f"KnownHostsCommand /bin/cat {file}"]


def by_authority(world: World, server: Sshd) -> str:
    return world.line(world.authority, marker="@cert-authority")


AES = "Ciphers aes128-ctr"
CASES = [
    Case("plain", "plain", True),
    Case("only 3des-cbc and hmac-md5", "old", False, says="no acceptable ciphers"),
    Case("3des allowed, md5 not", "old", False, with_setting("Ciphers +3des-cbc"), says="no acceptable macs"),
    Case("3des and md5 allowed", "old", True, with_setting("Ciphers +3des-cbc", "MACs +hmac-md5")),
    Case("aes-cbc", "cbc", False, says="no acceptable ciphers"),
    Case("aes-cbc allowed", "cbc", True, with_setting("Ciphers +aes256-cbc")),
    Case("one cipher", "plain", True, with_setting(AES, "MACs hmac-sha2-512")),
    Case("a cipher that the server lacks", "cbc", False, with_setting(AES), says="no acceptable ciphers"),
    Case("sha1 in the key exchange", "group14", False, says="no acceptable kex"),
    Case("curve25519 by its newer name", "plain", True, with_setting("KexAlgorithms curve25519-sha256")),
    Case("sha1 signatures", "sha1", False, says="no acceptable host key"),
    Case("host key algorithm", "plain", False, with_setting("HostKeyAlgorithms ecdsa-sha2-nistp256"), says="host key"),
    Case("only RSA", "plain", False, with_setting("HostKeyAlgorithms rsa-sha2-256", "StrictHostKeyChecking yes")),
    Case("short RSA key", "short", True),
    Case("too short RSA key", "short", False, with_setting("RequiredRSASize 2048"), says="1024 bits; RequiredRSASize"),
    Case("revoked by a list", "plain", False, revoked_list, says="revoked by file"),
    Case("revoked by a KRL", "plain", False, revocation_list, says="revoked by file"),
    Case("another one is revoked", "plain", True, others_revocation_list),
    Case(
        "revoked keys cannot be read",
        "plain",
        False,
        with_setting("RevokedHostKeys /missing/file"),
        says="in revoked keys file /missing/file: No such file",
    ),
    Case(
        "revoked in known_hosts",
        "plain",
        False,
        known=lambda world, server: server.known() + world.line(server.key, marker="@revoked"),
        says="revoked by",
    ),
    Case("host certificate", "certified", True, known=by_authority),
    Case(
        "host certificate by alias", "certified", True, with_setting("HostKeyAlias shared"), by_authority
    ),
    Case("certificate of another host", "elsewhere", False, known=by_authority, says="name is not a listed principal"),
    Case("certificate with a wildcard", "wild", False, known=by_authority, says="name is not a listed principal"),
    Case("expired certificate", "expired", False, known=by_authority, says="Certificate invalid: expired"),
    Case("a user's certificate", "users", False, known=by_authority),
    Case("expired certificate, known key", "expired", True),
    Case(
        "certificate of a strange authority",
        "certified",
        False,
        known=lambda world, server: world.line(world.other_authority, marker="@cert-authority"),
        says="its host key is unknown",
    ),
    Case("revoked authority", "certified", False, revoked_authority, by_authority, says="revoked"),
    Case(
        "authority revoked in known_hosts",
        "certified",
        False,
        known=lambda world, server: by_authority(world, server) + world.line(world.authority, marker="@revoked"),
        says="its host key is revoked",
    ),
    Case(
        "authority's algorithm",
        "certified",
        False,
        with_setting("CASignatureAlgorithms rsa-sha2-512"),
        by_authority,
        says="signed with disallowed algorithm",
    ),
    Case("authority of others", "certified", False, known=lambda w, _: w.line(w.authority, "x", "@cert-authority")),
    Case("KnownHostsCommand", "plain", True, known_hosts_command, lambda world, server: ""),
    Case(
        "KnownHostsCommand fails",
        "plain",
        False,
        with_setting("KnownHostsCommand /bin/false"),
        says="KnownHostsCommand failed",
    ),
    Case("public key algorithm", "plain", False, with_setting("PubkeyAcceptedAlgorithms rsa-sha2-512"), says="Pubkey"),
    Case("no public key", "plain", False, with_setting("PreferredAuthentications password")),
]  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    here = World(tmp_path_factory.mktemp("strict"))
    yield here
    here.place.close()


def by_ssh(config: str, *options: str) -> bool:
    argv = ["ssh", "-F", config, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", *options, "alias", "true"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def by_disttui(config: str) -> str:
    """Connect and run a command; returns why that was refused, "" when it was not."""
    connector = HostConnector(config, RefusePrompts())
    try:
        assert connector.connect(Address("alias")).run("echo in").read(10, 30) == b"in\n"
    except HostError as error:
        return error.what
    finally:
        connector.close()
    return ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_host_is_accepted_exactly_when_ssh_accepts_it(world: World, case: Case) -> None:
    config = world.config(case)
    assert by_ssh(config) is case.accepted
    why = by_disttui(config)
    assert (not why) is case.accepted, why
    assert case.says in why


def test_a_host_behind_a_strict_jump_host_is_refused(world: World) -> None:
    gate, last = world.servers["old"], world.servers["plain"]
    config = world.place.write(gate.block("gate") + last.block("alias", "  ProxyJump gate"))
    why = by_disttui(config)
    assert "jump host" in why
    assert "no acceptable ciphers" in why


@pytest.mark.parametrize("setting", ["Ciphers chacha20-poly1305@openssh.com", "MACs umac-64@openssh.com"])
def test_a_setting_that_cannot_be_kept_is_named(world: World, setting: str) -> None:
    server = world.servers["plain"]
    why = by_disttui(world.place.write(server.block("alias", f"  {setting}")))
    keyword, value = setting.split()
    assert f"{keyword} in your ssh configuration has nothing that disttui supports: {value}" in why


def test_a_sha1_signature_is_never_taken(world: World) -> None:
    server = world.servers["sha1"]
    why = by_disttui(world.place.write(server.block("alias", "  HostKeyAlgorithms +ssh-rsa")))
    assert "no acceptable host key" in why


def test_stricter_than_ssh_in_what_docs_security_says(world: World) -> None:
    """Hosts of this machine, and keys by DNS."""
    settings = "  NoHostAuthenticationForLocalhost yes\n  VerifyHostKeyDNS yes"
    config = world.place.write(world.servers["plain"].block("alias", settings), trusted="")
    assert by_ssh(config)
    assert "its host key is unknown" in by_disttui(config)


@pytest.mark.parametrize("left", ["KnownHostsCommand /bin/cat x", "RevokedHostKeys x", "ProxyCommand nc %h %p", ""])
def test_what_only_ssh_does_is_left_to_it(world: World, left: str) -> None:
    """Also what a jump host needs."""
    server = world.servers["certified"]
    known = server.known() if left else by_authority(world, server)
    wanted = f"{left.split(maxsplit=1)[0]} of your ssh configuration" if left else "@cert-authority in known_hosts"
    for text in (
        server.block("alias", f"  {left}" if left else ""),
        server.block("gate", f"  {left}") + "Host alias\n  ProxyJump gate\n",
    ):
        config = world.place.write(text, trusted=known)
        with (
            closing(SshConnector(str(config), RefusePrompts())) as connector,
            pytest.raises(NeedsSshError, match=wanted),
        ):
            connector.connect(Address("alias"))


def test_the_address_of_a_host_must_not_be_anothers(world: World) -> None:
    """CheckHostIP: the name is known, but known_hosts has another key for the address (ssh looks past loopback)."""
    server = world.servers["plain"]
    block = f"Host alias\n  HostName localhost\n  AddressFamily inet\n  Port {server.port}\n  CheckHostIP yes\n"
    key = " ".join(public(server.key).decode().split()[:2])
    known = f"[localhost]:{server.port} {key}\n"
    assert by_disttui(world.place.write(block, trusted=known)) == ""
    other = f"[127.0.0.1]:{server.port} {public(world.authority).decode()}"
    assert "has changed" in by_disttui(world.place.write(block, trusted=known + other))


def test_names_are_hashed_where_the_user_wants_that(world: World) -> None:
    server = world.servers["plain"]
    settings = "  HashKnownHosts yes\n  StrictHostKeyChecking accept-new"
    assert by_disttui(world.place.write(server.block("alias", settings), trusted="")) == ""
    text = world.place.known_hosts.read_text()
    assert text.startswith("|1|")
    assert "127.0.0.1" not in text
    assert by_disttui(world.place.write(server.block("alias"), trusted=text)) == ""
    assert by_ssh(str(world.place.config))


def test_a_known_hosts_file_with_a_space_in_its_name(world: World) -> None:
    server = world.servers["plain"]
    file = new_file(world.folder / "my known hosts", server.known())
    config = world.place.write(server.block("alias", f'  UserKnownHostsFile /missing/one "{file}"'), trusted="")
    assert by_ssh(config)
    assert by_disttui(config) == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_certificate_of_a_key_that_the_agent_holds(world: World, kind: str, tmp_path: Path) -> None:
    """The private key's file is gone; its public half and its certificate lie where IdentityFile says."""
    server = world.place.sshd(f"trusts_{kind}", f"TrustedUserCAKeys {world.authority}.pub")
    server.authorized.write_text("")
    key = new_key(tmp_path / "key", kind)
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        wait_for(socket.exists)
        environment = {"SSH_AUTH_SOCK": str(socket), "PATH": "/usr/bin:/bin"}
        add = ["ssh-add", "-q", str(key)]  # the agent's socket is there before it listens
        wait_for(lambda: subprocess.run(add, check=False, env=environment, stdin=subprocess.DEVNULL).returncode == 0)
        key.unlink()
        ssh_keygen("-q", "-s", str(world.authority), "-I", "me", "-n", USER, f"{key}.pub")
        config = world.place.write(server.block("alias", f"  IdentityFile {key}\n  IdentityAgent {socket}"))
        assert by_ssh(config)
        assert by_disttui(config) == ""
    finally:
        agent.terminate()
        agent.wait()


def test_a_short_key_of_the_user_is_not_used(world: World, tmp_path: Path) -> None:
    server = world.place.sshd("short_user", "RequiredRSASize 1024")
    short = new_key(tmp_path / "id_short", "rsa", rsa_bits=1024)
    server.authorized.write_bytes(public(short))
    block = f"  RequiredRSASize 2048\n  IdentityFile {short}"
    config = world.place.write(server.block("alias", block))
    assert not by_ssh(config)
    assert f"{short} (not tried: 1024 bits; RequiredRSASize is 2048)" in by_disttui(config)
