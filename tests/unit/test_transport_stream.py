"""Streams, over SSH and locally: whole, in time, and never stuck."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttui.runner.address import Address
from disttui.runner.transport import Connection, RefusePrompts, Stream
from disttui.runner.transport.local import LocalConnection
from disttui.runner.transport.ssh import SshConnector
from disttui.runner.transport.ssh_config import ssh_home
from disttui.runner.transport.system_ssh import SystemSshConnector
from tests.unit.sshd import Place, Sshd, children
from tests.unit.waiting import wait_for, wait_until_stuck

MEGA = 1024 * 1024


@pytest.fixture
def over_ssh(place: Place, server: Sshd) -> Iterator[Connection]:
    connector = SshConnector(place.write(server.block("host")), RefusePrompts())
    yield connector.connect(Address("host"))
    connector.close()


@pytest.fixture(params=["ssh", "local", "program"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    if request.param == "ssh":
        yield request.getfixturevalue("over_ssh")
    elif request.param == "program":
        place, server = request.getfixturevalue("place"), request.getfixturevalue("server")
        connector = SystemSshConnector(place.write(server.block("host")), RefusePrompts())
        yield connector.connect(Address("host"))
        connector.close()
    else:
        local = LocalConnection()
        yield local
        local.close()


def read_all(stream: Stream, limit: float = 60) -> bytes:
    data = b""
    while piece := stream.read(MEGA, limit):
        data += piece
    return data


def test_round_trip_of_100_megabytes(connection: Connection) -> None:
    block = random.Random(7).randbytes(MEGA)
    stream = connection.run("cat")

    def write() -> None:
        for index in range(100):
            stream.write(index.to_bytes(4, "big") + block)

    sent = hashlib.sha256()
    for index in range(100):
        sent.update(index.to_bytes(4, "big") + block)
    writer = threading.Thread(target=write)
    writer.start()
    received, size = hashlib.sha256(), 0
    while size < 100 * (MEGA + 4):
        piece = stream.read(MEGA, 60)
        assert piece
        received.update(piece)
        size += len(piece)
    writer.join()
    assert received.digest() == sent.digest()


def test_one_large_write(connection: Connection) -> None:
    """One write of more than any window or pipe holds."""
    stream = connection.run(f"sleep 0.5; head -c {20 * MEGA} | cksum")
    stream.write(bytes(20 * MEGA))
    assert read_all(stream).split()[1] == str(20 * MEGA).encode()


def test_flood_of_errors_holds_nothing_up(connection: Connection) -> None:
    stream = connection.run(f"head -c {20 * MEGA} /dev/zero | tr '\\0' e >&2; echo end >&2; echo out")
    assert read_all(stream) == b"out\n"
    wait_for(lambda: stream.errors().endswith("end\n"))
    assert 60_000 < len(stream.errors()) <= 65_536


def test_both_outputs_at_once(connection: Connection) -> None:
    stream = connection.run(f"head -c {30 * MEGA} /dev/zero >&2 & head -c {30 * MEGA} /dev/zero; wait")
    assert len(read_all(stream)) == 30 * MEGA


def test_timeout_then_data(connection: Connection) -> None:
    stream = connection.run("read line; echo got $line")
    with pytest.raises(TimeoutError):
        stream.read(10, 0.1)
    with pytest.raises(TimeoutError):
        stream.read(10, 0)
    stream.write(b"this\n")
    assert stream.read(100, 20) == b"got this\n"


def test_status_and_end(connection: Connection) -> None:
    stream = connection.run("echo said >&2; pwd; exec >&- 2>&-; sleep 0.3; exit 7")
    home = Path.home() if isinstance(connection, LocalConnection) else ssh_home()
    assert read_all(stream) == f"{home}\n".encode()
    assert stream.read(10, 1) == b""
    wait_for(lambda: stream.exit_status() == 7)
    assert stream.errors() == "said\n"


def test_no_status_when_killed(connection: Connection) -> None:
    stream = connection.run("kill -9 $$")
    assert read_all(stream) == b""
    later = connection.run("exit 3")
    wait_for(lambda: later.exit_status() == 3)
    assert stream.exit_status() is None


def test_writing_to_a_command_that_has_ended(connection: Connection) -> None:
    stream = connection.run("true")
    assert read_all(stream) == b""
    with pytest.raises(ConnectionError):
        while True:
            stream.write(b"x" * 65536)


def test_close_wakes_the_reader(connection: Connection) -> None:
    stream = connection.run("cat")
    ended: list[bytes | Exception] = []

    def take() -> None:
        try:
            ended.append(stream.read(10, None))
        except ConnectionError as error:
            ended.append(error)

    reader = threading.Thread(target=take)
    reader.start()
    wait_until_stuck(reader, "read")
    stream.close()
    stream.close()
    reader.join(10)
    assert ended == [b""]


def test_close_ends_a_stuck_writer(connection: Connection) -> None:
    """Nobody takes the input; closing the connection from another thread must not wait for that."""
    stream = connection.run("sleep 600")
    broke = threading.Event()

    def give() -> None:
        try:
            stream.write(bytes(50 * MEGA))
        except ConnectionError:
            broke.set()

    writer = threading.Thread(target=give)
    writer.start()
    wait_until_stuck(writer, "write")
    connection.close()
    connection.close()
    assert broke.wait(10)


def test_two_commands_on_one_connection(connection: Connection) -> None:
    one, two = connection.run("cat"), connection.run("cat")
    two.write(b"two")
    one.write(b"one")
    assert (one.read(10, 20), two.read(10, 20)) == (b"one", b"two")
    one.close()
    two.write(b"still")
    assert two.read(10, 20) == b"still"


def test_peer_that_stopped_reads_time_out_and_close_returns(over_ssh: Connection, server: Sshd) -> None:
    stream = over_ssh.run("cat")
    stream.write(b"x")
    assert stream.read(1, 20) == b"x"
    stopped = [pid for session in server.sessions() for pid in (session, *children(session))]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        stream.write(b"x")
        with pytest.raises(TimeoutError):
            stream.read(1, 0.5)
        # Fill the socket: a polite good-bye would now block.
        writer = threading.Thread(target=lambda: _swallow(stream), daemon=True)
        writer.start()
        wait_until_stuck(writer, "write")
        stream.close()
        over_ssh.close()
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def _swallow(stream: Stream) -> None:
    try:
        stream.write(bytes(50 * MEGA))
    except ConnectionError:
        pass


def test_dead_link_is_an_error_not_an_end(over_ssh: Connection, server: Sshd) -> None:
    stream = over_ssh.run("echo first; sleep 60")
    assert stream.read(100, 20) == b"first\n"
    for pid in server.sessions():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionError) as reading:
        stream.read(100, 20)
    with pytest.raises(ConnectionError) as writing:
        for _ in range(1000):
            stream.write(b"x" * 65536)
    with pytest.raises(ConnectionError) as running:
        over_ssh.run("true")
    for caught in (reading, writing, running):
        # Whoever shows it writes the host's name and "the link broke" in front of it.
        assert str(caught.value) and "the link broke" not in str(caught.value)


def test_local_commands_have_their_own_session() -> None:
    local = LocalConnection()
    assert os.getsid(int(local.run("echo $$; exec cat").read(100, 20))) != os.getsid(0)
    local.close()


# The ssh program has no second channel without a second login: it ends the command by the end of its input.
@pytest.mark.parametrize("connection", ["ssh", "local"], indirect=True)
def test_a_killed_command_leaves_no_child(connection: Connection) -> None:
    stream = connection.run("sh -c 'sleep 600 & echo $!; wait; : marked'")
    child = int(stream.read(100, 30))
    other = connection.run("sh -c 'sleep 601; : other'")
    stream.kill("marked")
    wait_for(lambda: not Path(f"/proc/{child}").exists())
    with pytest.raises(TimeoutError):
        other.read(1, 0.5)
    other.kill("other")
    stream.close()
    stream.kill("marked")
