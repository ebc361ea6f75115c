"""Servers that mean harm: each costs its own connection, within a limit, and says so; other hosts stay reachable."""

from __future__ import annotations

import json
import random
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_SUCCEEDED,
    cMSG_CHANNEL_DATA,
    cMSG_EXT_INFO,
    cMSG_USERAUTH_BANNER,
    cMSG_USERAUTH_INFO_REQUEST,
)

from disttui.runner.address import Address
from disttui.runner.errors import HostError
from disttui.runner.hosts import link as links
from disttui.runner.hosts.link import Link
from disttui.runner.transport import RefusePrompts
from disttui.runner.transport import auth as auth_module
from disttui.runner.transport import ssh as ssh_module
from disttui.runner.transport.sandbox import LoginSession, LoopbackServer
from disttui.runner.transport.ssh import SshConnector
from tests.unit.sshd import Answers, Place, new_key, public
from tests.unit.waiting import wait_for

MEGA = 1024 * 1024
GREETING = b"SSH-2.0-OpenSSH_9.9\r\n"


class Liar:
    """A TCP server that treats every client as `speak` does, until the client hangs up."""

    def __init__(self, speak: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._speak = speak
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._speak(connection)
            while connection.recv(65536):
                pass

    def __enter__(self) -> Liar:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def flood(piece: bytes) -> Callable[[socket.socket], None]:
    def speak(connection: socket.socket) -> None:
        while True:
            connection.sendall(piece)

    return speak


def say(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


def drip(before: bytes) -> Callable[[socket.socket], None]:
    def speak(connection: socket.socket) -> None:
        connection.sendall(before)
        while True:
            time.sleep(0.1)
            connection.sendall(b"\x00")

    return speak


def four_gigabytes(connection: socket.socket) -> None:
    connection.sendall(GREETING + struct.pack(">I", 0xFFFFFFF4))
    while True:
        connection.sendall(bytes(MEGA))


def kexinit(name: bytes) -> bytes:
    lists = b"".join(struct.pack(">I", len(name)) + name for _ in range(10))
    payload = b"\x14" + bytes(16) + lists + bytes(5)
    padding = 8 - (len(payload) + 5) % 8 + 8
    return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)


def unknown_message() -> bytes:
    return struct.pack(">IB", 12, 10) + b"\xc8" + bytes(10)


@pytest.mark.parametrize(
    ("speak", "says"),
    [
        (say(b""), r"no SSH handshake with \S+:\d+: no greeting in 1 s"),
        (flood(b"x" * 4096), r"\d: the server sends \d+ bytes without an SSH greeting; the server began with 'xxxx"),
        (flood(b"hello there\r\n"), r"no SSH handshake with .*; the server began with 'hello there"),
        (drip(b""), r"\d: the handshake did not finish in 2 s"),
        (drip(GREETING), r"did not finish in 2 s|no SSH handshake"),
        (four_gigabytes, r"announces a packet of \d{10} bytes"),
        (say(GREETING + kexinit(b"\xff\xfe,\x80")), r"no SSH handshake"),
        (say(GREETING + kexinit(b"")), r"no SSH handshake"),
        (say(GREETING + unknown_message()), r"no SSH handshake"),
        (say(b"SSH-2.0-\xff\xff\r\n"), r"no SSH handshake"),
        (say(b"SSH-1.5-old\r\n"), r"Incompatible version"),
        *[(say(GREETING + random.Random(seed).randbytes(5000)), r"no SSH handshake") for seed in range(10)],
    ],
)
def test_a_server_that_lies_before_the_keys_are_agreed_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, speak: Callable[[socket.socket], None], says: str
) -> None:
    monkeypatch.setattr(ssh_module, "_GREETING_LIMIT", 1.0)
    before = memory()
    with Liar(speak) as server:
        config = place.write(f"Host alias\n  HostName 127.0.0.1\n  Port {server.port}\n")
        connector = SshConnector(config, RefusePrompts())
        with pytest.raises(HostError, match=says) as caught:
            connector.connect(Address("alias"))
        assert f"127.0.0.1:{server.port}" in caught.value.sentence
        assert len(caught.value.sentence) < 1000
        connector.close()
    assert memory() - before < 64 * MEGA


def memory() -> int:
    """The most bytes this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def test_hostile_servers_do_not_hold_up_another_host(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_module, "_GREETING_LIMIT", 2.0)
    good = place.sshd("good")
    with Liar(drip(b"")) as slow, Liar(flood(b"x" * 65536)) as loud, Liar(four_gigabytes) as big:
        blocks = good.block("good")
        for name, server in (("slow", slow), ("loud", loud), ("big", big)):
            blocks += f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n"
        connector = SshConnector(place.write(blocks), RefusePrompts())
        with ThreadPoolExecutor(4) as pool:
            bad = [pool.submit(connector.connect, Address(name)) for name in ("slow", "loud", "big")]
            stream = pool.submit(connector.connect, Address("good")).result(60).run("echo fine")
            assert stream.read(10, 30) == b"fine\n"
            for each in bad:
                assert isinstance(each.exception(60), HostError)
        connector.close()


class Villain(LoginSession):
    """Lets anybody in, and does what its kind does with whom it has lured."""

    kind = ""

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive" if self.kind == "questions" else "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if self.kind == "banner":
            # No more: this server packs it in the process whose memory is measured, some seven copies of it.
            self._send(cMSG_USERAUTH_BANNER, "x" * MEGA, "")
        elif self.kind == "banners":
            for _ in range(100):
                self._send(cMSG_USERAUTH_BANNER, "x" * 30_000, "")
        elif self.kind == "extensions":
            self._send(cMSG_EXT_INFO, 0xFFFFFFFF)
        elif self.kind == "type":
            self._send(b"\xc8")
        elif self.kind == "slow":
            time.sleep(0.4)
            return AUTH_FAILED
        return AUTH_FAILED if self.kind == "questions" else AUTH_SUCCESSFUL

    def check_auth_none(self, username: str) -> int:
        return AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        self._send(cMSG_USERAUTH_INFO_REQUEST, "", "", "", 0x7FFFFFFF)
        return AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if self.kind == "mute":
            time.sleep(6)
        elif self.kind == "flood":
            threading.Thread(target=self._flood, daemon=True).start()
        return True

    def _flood(self) -> None:
        with suppress(Exception):
            self._transport.replied.acquire()
            for _ in range(3000):
                self._send(cMSG_CHANNEL_DATA, 0, b"x" * 30_000)

    def _send(self, kind: bytes, *fields: int | str | bytes) -> None:
        message = paramiko.Message()
        message.add_byte(kind)
        for field in fields:
            if isinstance(field, int):
                message.add_int(field)
            else:
                message.add_string(field)
        self._transport._send_message(message)  # type: ignore[attr-defined]


@pytest.fixture
def villain(place: Place) -> Iterator[Callable[[str], str]]:
    """Start a server of one kind; returns the path of the ssh configuration that leads to it as `alias`."""
    servers: list[LoopbackServer] = []

    def start(kind: str) -> str:
        key = new_key(place.folder / "host_key")
        host_key = paramiko.Ed25519Key.from_private_key_file(str(key))
        server = type("Server", (LoopbackServer,), {"session": type("Bad", (Villain,), {"kind": kind})})(
            host_key, host_key, place.folder, "anybody"
        )
        servers.append(server)
        block = f"Host alias\n  HostName 127.0.0.1\n  Port {server.port}\n"
        return place.write(block, trusted=f"[127.0.0.1]:{server.port} {public(key).decode()}")

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("banner", r"announces a packet of 104\d+ bytes"),
        ("banners", r"sends more than 1024 KiB before the login"),
        ("extensions", r"announces 4294967295 extensions at once"),
        ("questions", r"announces 2147483647 questions at once"),
        ("type", r"login as .* refused"),
    ],
)
def test_a_server_that_lies_while_we_log_in(villain: Callable[[str], str], kind: str, says: str) -> None:
    before = memory()
    connector = SshConnector(villain(kind), Answers())
    with pytest.raises(HostError, match=says):
        connector.connect(Address("alias"))
    connector.close()
    assert memory() - before < 64 * MEGA


def test_a_login_that_never_ends_is_given_up(
    place: Place, villain: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer comes in time; all together take too long."""
    monkeypatch.setattr(auth_module, "_LOGIN_LIMIT", 1.0)
    config = Path(villain("slow"))
    keys = [new_key(place.folder / f"key{index}") for index in range(5)]
    lines = "".join(f"  IdentityFile {key}\n" for key in keys)
    config.write_text(config.read_text().replace("Host *\n", f"Host *\n{lines}"))
    connector = SshConnector(str(config), RefusePrompts())
    with pytest.raises(HostError, match=r"the server took more than 1 s for the login"):
        connector.connect(Address("alias"))
    connector.close()


def test_a_server_that_never_answers_a_command(villain: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_module, "_COMMAND_LIMIT", 1.0)
    connector = SshConnector(villain("mute"), RefusePrompts())
    connection = connector.connect(Address("alias"))
    with pytest.raises(ConnectionError):
        connection.run("true")
    connector.close()


def test_a_server_that_sends_more_than_was_asked_for_is_cut_off(villain: Callable[[str], str]) -> None:
    """90 MB that nobody reads: paramiko alone keeps all of it."""
    before = memory()
    connector = SshConnector(villain("flood"), RefusePrompts())
    stream = connector.connect(Address("alias")).run("true")
    transport = stream._channel.transport
    assert transport is not None
    wait_for(lambda: not transport.is_active(), "the end of the connection")
    with pytest.raises(ConnectionError):
        while stream.read(MEGA, 10):
            pass
    connector.close()
    assert memory() - before < 64 * MEGA


class Scripted:
    """A connection whose loader is played by `script`, which yields what it prints; its login scripts are in order."""

    name = "scripted"

    def __init__(self, script: Callable[[bytes], Iterator[bytes]]) -> None:
        self._script = script
        self._input = b""
        self._output: Iterator[bytes] | None = None
        self._closed = False

    def run(self, command: str) -> Any:
        return PlainShell(command) if command.startswith("echo ") else self

    def write(self, data: bytes) -> None:
        if self._closed:
            raise ConnectionError("closed")
        self._input += data
        if self._output is None and self._input.count(b"\n") >= 2:
            self._output = self._script(json.loads(self._input.split(b"\n")[1])["marker"].encode())

    def read(self, size: int, timeout: float | None = None) -> bytes:
        if timeout is not None and timeout <= 0:
            raise TimeoutError
        assert self._output is not None
        return next(self._output, b"")

    def errors(self) -> str:
        return ""

    def exit_status(self) -> int | None:
        return 0

    def kill(self, word: str) -> None: ...

    def close(self) -> None:
        self._closed = True


class PlainShell(Scripted):
    """What a login shell makes of `echo TOKEN ran $SHELL; head -n 1`."""

    def __init__(self, command: str) -> None:
        super().__init__(lambda marker: iter([]))
        self._said = f"{command.split()[1]} ran /bin/sh\n".encode()

    def write(self, data: bytes) -> None:
        self._output = iter([self._said, data])


def endless(piece: bytes, pause: float = 0.0) -> Callable[[bytes], Iterator[bytes]]:
    def script(marker: bytes) -> Iterator[bytes]:
        while True:
            time.sleep(pause)
            yield piece

    return script


def after_marker(answer: bytes) -> Callable[[bytes], Iterator[bytes]]:
    return lambda marker: iter([b"\n" + marker + b" ", answer])


def never_ending_answer(marker: bytes) -> Iterator[bytes]:
    yield b"\n" + marker
    while True:
        yield b" " * 65536


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (endless(b"motd\n" * 1000), "print too much"),
        (endless(b".", 0.1), "did not start in 1 s"),
        (never_ending_answer, "not from disttui's loader"),
        (after_marker(b"[" * 4000 + b"\n"), "not from disttui's loader"),
        (after_marker(b"[1]\n"), "not from disttui's loader"),
        (after_marker(b"garbage \x1b[31m\n"), r"not from disttui's loader: 'garbage"),
    ],
)
def test_a_host_whose_loader_lies(
    monkeypatch: pytest.MonkeyPatch, script: Callable[[bytes], Iterator[bytes]], says: str
) -> None:
    monkeypatch.setattr(links, "HELLO", 1.0)
    with pytest.raises(HostError, match=says) as caught:
        Link(Scripted(script), "node7")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("missing", [b"7", b"null", b'{"node": 1}', b'["x", 5]'])
def test_a_loader_that_asks_for_strange_things_is_sent_nothing(missing: bytes) -> None:
    link = Link(Scripted(after_marker(b'{"python": "3.11", "missing": ' + missing + b"}\n")), "node7")
    with pytest.raises(HostError, match="the link broke"):
        link.request("probe", timeout=20)
    link.close()


def test_a_malformed_answer_leaves_nobody_waiting() -> None:
    payload = json.dumps({"id": 1, "error": 5}).encode()
    frame = b"J" + struct.pack(">I", len(payload)) + payload

    def script(marker: bytes) -> Iterator[bytes]:
        begun = len(connection._input)
        yield b"\n" + marker + b' {"python": "3.11", "missing": []}\n'
        wait_for(lambda: b'"probe"' in connection._input[begun:], "the request")
        yield frame
        over.wait(60)

    over, connection = threading.Event(), Scripted(script)
    link = Link(connection, "node7")
    with pytest.raises(HostError, match="unreadable answer to 'probe'"):
        link.request("probe", timeout=20)
    over.set()
