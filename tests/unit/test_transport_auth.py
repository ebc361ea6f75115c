"""Logging in: agents, keys of every kind, certificates, passphrases, passwords, questions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_PARTIALLY_SUCCESSFUL, AUTH_SUCCESSFUL

from disttui.runner.address import Address
from disttui.runner.errors import HostError
from disttui.runner.transport import RefusePrompts
from disttui.runner.transport.sandbox import LoginSession, LoopbackServer
from disttui.runner.transport.ssh import SshConnector
from tests.unit.sshd import USER, Answers, Place, new_key, public, ssh_keygen
from tests.unit.waiting import wait_for


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """The socket of an agent of our own."""
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    wait_for(path.exists)
    yield path
    process.terminate()
    process.wait()


def add(agent: Path, key: Path, *options: str) -> None:
    environment = {"SSH_AUTH_SOCK": str(agent), "PATH": "/usr/bin:/bin"}
    subprocess.run(["ssh-add", "-q", *options, str(key)], check=True, env=environment, stdin=subprocess.DEVNULL)


def login(config: str, prompts: Answers | RefusePrompts | None = None, times: int = 1) -> None:
    """Connect to `alias` so many times and see that commands run."""
    with closing(SshConnector(config, prompts or RefusePrompts())) as connector:
        for _ in range(times):
            assert connector.connect(Address("alias")).run("echo in").read(10, 20) == b"in\n"


@pytest.mark.parametrize(
    ("kind", "options"), [("ed25519", []), ("rsa", []), ("ecdsa", []), ("rsa", ["-m", "PEM"]), ("ecdsa", ["-m", "PEM"])]
)
@pytest.mark.parametrize("passphrase", ["", "open sesame"])
def test_key_files(place: Place, kind: str, options: list[str], passphrase: str) -> None:
    key = new_key(place.folder / "key", kind)
    ssh_keygen("-p", "-q", "-P", "", "-N", passphrase, *options, "-f", str(key))
    server = place.sshd("one")
    server.authorized.write_bytes(public(key))
    config = place.write(server.block("alias", f"  IdentityFile {key}"))
    prompts = Answers("wrong", passphrase)
    login(config, prompts, times=2)
    assert prompts.questions == ([f"alias: passphrase of {key}:"] * 2 if passphrase else [])


def test_no_passphrase_is_asked_for_when_another_key_will_do(place: Place) -> None:
    locked = new_key(place.folder / "locked", passphrase="secret")
    server = place.sshd("one")
    prompts = Answers()
    login(place.write(server.block("alias", f"  IdentityFile {locked}")), prompts)
    assert not prompts.questions


def test_unusable_keys_are_named(place: Place) -> None:
    locked = new_key(place.folder / "locked", passphrase="secret")
    loose = new_key(place.folder / "loose")
    loose.chmod(0o644)
    damaged = place.folder / "damaged"
    damaged.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n")
    damaged.chmod(0o600)
    server = place.sshd("one")
    server.authorized.write_text("")
    files = "".join(f"  IdentityFile {path}\n" for path in (locked, loose, damaged))
    with pytest.raises(HostError) as caught:
        login(place.write(server.block("alias", files)))
    for said in (
        "locked (not usable: needs a passphrase",
        "loose (not usable: others can read it",
        "damaged (not usable",
    ):
        assert said in caught.value.sentence


def test_agent_holds_what_the_identity_file_names(place: Place, agent: Path) -> None:
    key = new_key(place.folder / "held")
    add(agent, place.key)
    add(agent, key)
    key.unlink()
    server = place.sshd("one", extra="MaxAuthTries 1")
    server.authorized.write_bytes(public(key))
    login(place.write(server.block("alias", f"  IdentityFile {key}\n  IdentityAgent {agent}")))
    # The public half alone may be named as well.
    login(place.write(server.block("alias", f"  IdentityFile {key}.pub\n  IdentityAgent {agent}")))


def test_agent_of_the_environment(place: Place, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key(place.folder / "held", "rsa")
    add(agent, key)
    key.rename(place.folder / "away")
    server = place.sshd("one")
    server.authorized.write_bytes(public(key))
    config = place.write(server.block("alias", "  IdentityAgent SSH_AUTH_SOCK\n  IdentitiesOnly no"))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    login(config)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(place.folder / "gone"))
    with pytest.raises(HostError, match="refused"):
        login(config)


def test_agent_that_will_not_sign(place: Place, agent: Path) -> None:
    """Nobody confirms the use of the agent's key: the next key has its turn on the same connection."""
    guarded = new_key(place.folder / "guarded")
    add(agent, guarded, "-c")
    server = place.sshd("one")
    with server.authorized.open("ab") as file:
        file.write(public(guarded))
    login(place.write(server.block("alias", f"  IdentityAgent {agent}\n  IdentitiesOnly no")))


def test_too_many_keys(place: Place, agent: Path) -> None:
    for index in range(3):
        add(agent, new_key(place.folder / f"key{index}"))
    server = place.sshd("one", extra="MaxAuthTries 2")
    config = place.write(server.block("alias", f"  IdentityAgent {agent}\n  IdentitiesOnly no"))
    with pytest.raises(
        HostError, match=r"agent key key0 SHA256:.*; agent key key1 SHA256:.*the server closed the connection"
    ) as caught:
        login(config)
    assert "the server closed the connection: Too many authentication failures" in caught.value.what
    assert "IdentitiesOnly yes" in caught.value.cure


@pytest.mark.parametrize("named", [False, True])
def test_certificate(place: Place, named: bool) -> None:
    authority = new_key(place.folder / "ca")
    server = place.sshd("one", extra=f"TrustedUserCAKeys {authority}.pub")
    server.authorized.write_text("")
    ssh_keygen("-q", "-s", str(authority), "-I", "me", "-n", USER, f"{place.key}.pub")
    block = ""
    if named:
        # Beside one of another key, which must not be tried with ours.
        other = new_key(place.folder / "other")
        ssh_keygen("-q", "-s", str(authority), "-I", "me", "-n", USER, f"{other}.pub")
        moved = shutil.move(f"{place.key}-cert.pub", place.folder / "elsewhere.pub")
        block = f"  CertificateFile {other}-cert.pub\n  CertificateFile {moved}"
    login(place.write(server.block("alias", block)))


class Guard(LoginSession):
    """Wants a password, a one-time code, or the key and then a password, by the user's name; `mute` asks nothing."""

    def get_allowed_auths(self, username: str) -> str:
        methods = {"pass": "password", "code": "keyboard-interactive", "both": "publickey,password"}
        return methods.get(username, "keyboard-interactive,password")

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_PARTIALLY_SUCCESSFUL if username == "both" else AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        return AUTH_SUCCESSFUL if password == "sesame" else AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> int | paramiko.server.InteractiveQuery:
        if username == "mute":
            return AUTH_FAILED
        return paramiko.server.InteractiveQuery("", "", ("Password:", False), ("Code:", True))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        return AUTH_SUCCESSFUL if responses == ["sesame", "123"] else AUTH_FAILED


class GuardedServer(LoopbackServer):
    session = Guard


@pytest.fixture
def guarded(place: Place) -> Iterator[GuardedServer]:
    key = new_key(place.folder / "host_key")
    host_key = paramiko.Ed25519Key.from_private_key_file(str(key))
    server = GuardedServer(host_key, host_key, place.folder, "nobody")
    place.write("", trusted=f"[127.0.0.1]:{server.port} {public(key).decode()}")
    yield server
    server.close()


def guarded_config(place: Place, server: LoopbackServer, user: str, more: str = "") -> str:
    block = f"Host alias\n  HostName 127.0.0.1\n  Port {server.port}\n  User {user}\n{more}\n"
    return place.write(block, trusted=place.known_hosts.read_text())


def test_password_is_asked_for_once(place: Place, guarded: GuardedServer) -> None:
    prompts = Answers("wrong", "sesame", "not needed")
    login(guarded_config(place, guarded, "pass"), prompts, times=3)
    assert prompts.questions == [
        "alias: password of pass on 127.0.0.1:", "alias: login refused, try again: password of pass on 127.0.0.1:",
    ]  # fmt: skip


def test_questions_of_the_server(place: Place, guarded: GuardedServer) -> None:
    prompts, answer = Answers("sesame", "wrong", "sesame", "123"), "alias: your answer:"
    login(guarded_config(place, guarded, "code"), prompts)
    asked = "password of code on 127.0.0.1:", "login refused, try again: password of code on 127.0.0.1:"
    assert prompts.questions == [f"alias: {asked[0]}", answer, f"alias: {asked[1]}", answer]
    assert prompts.said == ["", "│ Code:"] * 2


def test_password_is_asked_for_where_the_server_asks_nothing(place: Place, guarded: GuardedServer) -> None:
    prompts = Answers("wrong", "wrong", "sesame")
    login(guarded_config(place, guarded, "mute"), prompts)
    assert len(prompts.questions) == 3


def test_key_and_then_password(place: Place, guarded: GuardedServer) -> None:
    prompts = Answers("sesame")
    login(guarded_config(place, guarded, "both"), prompts)
    assert prompts.questions == ["alias: password of both on 127.0.0.1:"]


def test_nobody_answers(place: Place, guarded: GuardedServer) -> None:
    for user, method in (("pass", "password"), ("code", "keyboard-interactive")):
        with pytest.raises(HostError, match=f"the server accepts {method}"):
            login(guarded_config(place, guarded, user))
    prompts = Answers("wrong", "wrong", "wrong", "sesame")
    with pytest.raises(HostError, match=r"tried: .*password; password; password"):
        login(guarded_config(place, guarded, "pass"), prompts)


def test_batch_mode_asks_nothing(place: Place, guarded: GuardedServer) -> None:
    prompts = Answers("sesame")
    with pytest.raises(HostError, match="refused"):
        login(guarded_config(place, guarded, "pass", "  BatchMode yes"), prompts)
    assert not prompts.questions
