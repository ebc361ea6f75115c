"""The one door to all hosts, and questions at the terminal."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest

from disttui.runner.address import Address
from disttui.runner.errors import HostError
from disttui.runner.transport import RefusePrompts
from disttui.runner.transport.connector import HostConnector
from tests.command import ran
from tests.unit.sshd import Answers, Place, new_key, public, ssh_keygen

ROOT = Path(__file__).parents[2]


def test_local_and_ssh(place: Place) -> None:
    server = place.sshd("one")
    with closing(HostConnector(place.write(server.block("host")), RefusePrompts())) as connector:
        local, remote = connector.connect(Address("local")), connector.connect(Address("host"))
        assert (local.name, remote.name) == ("local", "host")
        command = "echo ${SSH_CONNECTION:-none}"
        assert local.run(f"unset SSH_CONNECTION; {command}").read(100, 20) == b"none\n"
        assert remote.run(command).read(100, 20).split()[3] == str(server.port).encode()


def test_a_proxy_command_is_left_to_ssh(place: Place) -> None:
    gate, last = place.sshd("gate"), place.sshd("last")
    place.write(gate.block("gate"))
    proxy = f"  ProxyCommand ssh -F {place.folder}/config -W %h:%p gate"
    blocks = gate.block("gate") + last.block("last", proxy)
    config = place.write(f"{blocks}Host lost\n  ProxyCommand sh -c 'echo no such tunnel >&2; false'\n")
    with closing(HostConnector(config, RefusePrompts())) as connector:
        assert connector.connect(Address("last")).run("echo through").read(100, 30) == b"through\n"
        assert gate.logins == 1
        with pytest.raises(HostError, match="ssh: no such tunnel"):
            connector.connect(Address("lost")).run("true")


@pytest.mark.parametrize(
    "server_only", ["Ciphers chacha20-poly1305@openssh.com", "KexAlgorithms sntrup761x25519-sha512@openssh.com"]
)
def test_algorithms_that_paramiko_lacks_are_left_to_ssh(place: Place, server_only: str) -> None:
    """Of the server, or of its jump host."""
    strict, plain = place.sshd("strict", server_only), place.sshd("plain")
    blocks = strict.block("strict") + plain.block("behind", "  ProxyJump strict")
    with closing(HostConnector(place.write(blocks), RefusePrompts())) as connector:
        for name in ("strict", "behind"):
            assert connector.connect(Address(name)).run("echo in").read(100, 30) == b"in\n"
        begun = strict.log.read_bytes().count(b"Connection from")
        connector.connect(Address("strict")).run("true")
        assert strict.log.read_bytes().count(b"Connection from") == begun + 1


@pytest.mark.parametrize("form", [["-m", "PKCS8"], ["-m", "PKCS8", "-N", "sesame"]], ids=["plain", "encrypted"])
def test_keys_that_paramiko_cannot_read_are_left_to_ssh(place: Place, form: list[str]) -> None:
    """Before any question: ssh would try them first."""
    server = place.sshd("one", "PasswordAuthentication yes")
    key = new_key(place.folder / "pkcs8", "ecdsa")
    ssh_keygen("-p", "-q", "-f", str(key), *([] if "-N" in form else ["-N", ""]), *form)
    server.authorized.write_bytes(public(key))
    prompts = Answers("sesame")
    config = place.write(server.block("alias", f"  IdentityFile {key}"))
    with closing(HostConnector(config, prompts)) as connector:
        assert connector.connect(Address("alias")).run("echo in").read(100, 30) == b"in\n"
        assert len(prompts.questions) == ("-N" in form) and "password of" not in "".join(prompts.questions)


def test_local_alone_needs_no_paramiko() -> None:
    code = (
        "import sys\nfrom disttui.runner.address import Address\nfrom disttui.runner.transport import RefusePrompts\n"
        "from disttui.runner.transport.connector import HostConnector\n"
        "HostConnector(None, RefusePrompts()).connect(Address('local')).run('true').read(1, 20)\n"
        "sys.exit('paramiko' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


ASK = "from disttui.runner.cli.viewing import TerminalQuestions; asked = TerminalQuestions()\n"


def terminal(code: str) -> pexpect.spawn[str]:
    return pexpect.spawn(sys.executable, ["-c", ASK + code], cwd=str(ROOT), encoding="utf-8", timeout=30)


def test_secret_is_asked_for_without_echo() -> None:
    child = terminal("print(repr(asked.secret('node1\\x1b[2J', 'pass\\nword:')))")
    child.expect_exact("node1: pass word: ")
    child.sendline("sesame")
    child.expect(pexpect.EOF)
    assert child.before.split() == ["'sesame'"]


def test_messages_of_a_host_are_shown_above_the_question() -> None:
    child = terminal(
        "asked.tell('node1', '│ wait\x1b[2J'); asked.secret('node1', 'your answer:', '│ 1. Push\\n│ Code:')"
    )
    child.expect_exact("node1 says:\r\n│ wait\r\nnode1 says:\r\n│ 1. Push\r\n│ Code:\r\nnode1: your answer: ")
    child.sendline("1")
    child.expect(pexpect.EOF)


@pytest.mark.parametrize(("others", "words"), [(1, "the other host?"), (15, "the other 15 hosts?")])
def test_sharing_a_password_needs_a_yes(others: int, words: str) -> None:
    child = terminal(f"print(asked.share_password('node1', {others}))")
    child.expect_exact(f"Try it on {words}")
    child.expect_exact("[y/N] ")
    child.sendline("")
    child.expect_exact("False")


def test_empty_answer_gives_up() -> None:
    child = terminal("print(asked.secret('node1', 'password:'))")
    child.expect_exact("password:")
    child.sendline("")
    child.expect_exact("None")


@pytest.mark.parametrize(("answer", "said"), [("y", "True"), ("yes", "True"), ("", "False"), ("n", "False")])
def test_host_key_question(answer: str, said: str) -> None:
    child = terminal("print(asked.accept_host_key('node1', 'ssh-ed25519', 'SHA256:abc'))")
    child.expect_exact("node1: the host key is unknown: ssh-ed25519 SHA256:abc")
    child.expect_exact("[y/N] ")
    child.sendline(answer)
    child.expect_exact(said)


def test_no_terminal_means_no() -> None:
    code = ASK + "print(asked.secret('h', 'q'), asked.accept_host_key('h', 't', 'f'))"
    done = ran([sys.executable, "-c", code], cwd=ROOT, check=True, start_new_session=True)
    assert (done.stdout, done.stderr) == ("None False\n", "")
