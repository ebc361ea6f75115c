"""The terminal of this process while a host's program has it: what is shown at the end, and where it is nobody's."""

from __future__ import annotations

import os
import pty
import select
import socket
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from paramiko.ssh_exception import SSHException

from disttui.runner.transport.terminal import connect_terminal
from tests.command import ran


class _Ended:
    """A channel whose program has ended, with output that is still to be read, while a person types."""

    closed, eof_received, exit_status = True, True, 7

    def __init__(self, output: list[bytes], keyboard: int) -> None:
        self._output, self._keyboard = output, keyboard
        self._ready, writer = socket.socketpair()
        writer.close()
        self.status_event = threading.Event()
        self.status_event.set()

    def fileno(self) -> int:
        return self._ready.fileno()

    def settimeout(self, seconds: float) -> None:
        pass

    def send_ready(self) -> bool:
        return True

    def send(self, data: bytes) -> int:
        raise OSError("Socket is closed")

    def resize_pty(self, columns: int, lines: int) -> None:
        raise SSHException("Channel is not open")

    def recv(self, most: int) -> bytes:
        os.write(self._keyboard, b"x")
        return self._output.pop(0) if self._output else b""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The ends of a terminal, whose second one is standard input and output."""
    far, near = pty.openpty()
    with os.fdopen(near, "r+b", 0) as file:
        monkeypatch.setattr("disttui.runner.transport.terminal.sys", SimpleNamespace(stdin=file, stdout=file))
        yield far, near
    os.close(far)


def test_what_is_typed_after_the_end_costs_no_output(terminal: tuple[int, int]) -> None:
    channel: Any = _Ended([b"a", b"b", b"c"], terminal[0])
    connect_terminal(channel, os.terminal_size((1, 1)))
    seen = b""
    while b"abc" not in seen:  # in parts, and before what was typed, which the restored terminal shows
        assert select.select([terminal[0]], [], [], 60)[0], seen
        seen += os.read(terminal[0], 100)


def test_what_is_typed_ahead_arrives(terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    channel, sent = _Ended([b"."] * 1000, terminal[0]), list[bytes]()

    def send(data: bytes) -> int:
        sent.append(data)
        return len(data)

    monkeypatch.setattr(channel, "send", send)
    monkeypatch.setattr(channel, "recv", lambda most: channel._output.pop() if channel._output and not sent else b"")
    os.write(terminal[0], b"make\n")
    connect_terminal(channel, os.terminal_size((80, 24)))  # type: ignore[arg-type]
    assert sent == [b"make\n"]


def test_a_terminal_that_controls_nothing_is_lent_as_well() -> None:
    far, near = pty.openpty()
    line = "from disttui.runner.transport.terminal import lend_terminal; print(lend_terminal(['sh', '-c', 'exit 4']))"
    done = ran([sys.executable, "-c", line], stdin=near, start_new_session=True)
    os.close(near)
    os.close(far)
    assert (done.stdout, done.stderr) == ("4\n", "")
