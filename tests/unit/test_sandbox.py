"""The sandbox: hosts played on loopback, reached by the real SSH code."""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from disttui.runner import private
from disttui.runner.address import Address
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import InputError
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.transport import Connection
from disttui.runner.transport.sandbox import Sandbox
from tests.unit.waiting import wait_for

MEGA = 1024 * 1024


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(["node1", "10.0.0.7", "local"]) as played:
        yield played


def output(connection: Connection, command: str) -> str:
    stream = connection.run(command)
    data = b""
    while piece := stream.read(MEGA, 30):
        data += piece
    return data.decode()


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_every_host_has_a_home_of_its_own(sandbox: Sandbox) -> None:
    assert list(sandbox.homes) == ["node1", "10.0.0.7", "local"]
    for name, home in sandbox.homes.items():
        connection = sandbox.connect(Address(name, user="ignored", port=1))
        assert connection.name == name
        said = output(connection, "pwd; echo $HOME; touch mine; ls")
        assert said == f"{home}\n{home}\nmine\n"
    assert [sorted(path.name for path in home.iterdir()) for home in sandbox.homes.values()] == [["mine"]] * 3


def test_environment_is_that_of_a_login(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    said = output(sandbox.connect(Address("node1")), "env").splitlines()
    names = {line.partition("=")[0] for line in said}
    assert {"HOME", "USER", "LOGNAME", "PATH"} <= names
    assert not any(name.startswith(("XDG_", "PYTHON", "SSH_")) for name in names)


def test_unknown_host(sandbox: Sandbox) -> None:
    with pytest.raises(InputError, match="node2"):
        sandbox.connect(Address("node2"))


def test_listens_on_loopback_only(sandbox: Sandbox) -> None:
    links = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_socket()]
    sockets = {str(link) for link in links}
    listening = []
    for file, width in (("tcp", 8), ("tcp6", 32)):
        for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                listening.append(fields[1][:width])
    assert len(listening) >= 3
    assert set(listening) == {"0100007F"}


def test_strangers_are_not_let_in(sandbox: Sandbox, tmp_path: Path) -> None:
    """Another key than the one made for this run."""
    with closing(Sandbox(["node1"])) as other:
        ours, theirs = (Path(each._private) for each in (sandbox, other))
        (ours / "key").write_bytes((theirs / "key").read_bytes())
        with pytest.raises(Exception, match="refused"):
            sandbox.connect(Address("node1"))


def test_local_users_can_neither_fill_memory_nor_block_logins(sandbox: Sandbox) -> None:
    """A packet of 4 GB, and 200 connections that say nothing."""
    port = sandbox._servers[0].port
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    threads = threading.active_count()
    with socket.create_connection(("127.0.0.1", port), 20) as loud, pytest.raises(OSError, match=r"reset|Broken pipe"):
        loud.sendall(b"SSH-2.0-x\r\n" + struct.pack(">I", 0xFFFFFFF4))
        for _ in range(2000):
            loud.sendall(bytes(MEGA))
    idle = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(200)]
    try:
        assert output(sandbox.connect(Address("node1")), "echo in") == "in\n"
        wait_for(lambda: threading.active_count() - threads < 100)
    finally:
        for each in idle:
            each.close()
    if sys.platform == "linux":  # in KiB
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 * 1024


def test_large_data_both_ways(sandbox: Sandbox) -> None:
    stream = sandbox.connect(Address("node1")).run("tee /dev/stderr | cat")
    block = os.urandom(MEGA)
    sent, received = hashlib.sha256(), hashlib.sha256()

    def write() -> None:
        for _ in range(20):
            stream.write(block)

    threading.Thread(target=write, daemon=True).start()
    for _ in range(20):
        sent.update(block)
    size = 0
    while size < 20 * MEGA:
        piece = stream.read(MEGA, 30)
        received.update(piece)
        size += len(piece)
    assert received.digest() == sent.digest()


def test_a_short_command_always_ends_well(sandbox: Sandbox) -> None:
    connection = sandbox.connect(Address("node1"))
    for index in range(30):
        stream = connection.run(f"exit {index}")
        assert stream.read(10, 30) == b""
        wait_for(lambda: stream.exit_status() == index)  # noqa: B023 - called at once


def test_input_that_nobody_reads_blocks_nobody(sandbox: Sandbox) -> None:
    stream = sandbox.connect(Address("node1")).run("exec <&-; until [ -e go ]; do sleep 0.02; done; echo done")
    stream.write(bytes(10 * MEGA))
    (sandbox.homes["node1"] / "go").touch()
    assert stream.read(10, 30) == b"done\n"


def test_hangup_ends_the_command_but_not_detached_processes(sandbox: Sandbox) -> None:
    connection = sandbox.connect(Address("node1"))
    stream = connection.run("setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $! $$; exec sleep 300")
    detached, command = map(int, stream.read(100, 30).split())
    connection.close()
    try:
        wait_for(lambda: not alive(command))
        assert alive(detached)
    finally:
        os.kill(detached, 9)


def test_a_command_that_ends_by_itself_is_not_killed(sandbox: Sandbox) -> None:
    connection = sandbox.connect(Address("node1"))
    stream = connection.run("trap '' HUP TERM; cat; sleep 0.3; touch $HOME/finished")
    stream.write(b"x")
    assert stream.read(1, 30) == b"x"
    connection.close()
    wait_for((sandbox.homes["node1"] / "finished").exists)


def test_nothing_is_left() -> None:
    with Sandbox(["a", "b"]) as played:
        root = played.homes["a"].parents[1]
        stream = played.connect(Address("a")).run("echo $$; exec sleep 300")
        pid = int(stream.read(100, 30))
        address = played._servers[0].port
    assert not root.exists()
    wait_for(lambda: not alive(pid))
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", address)) != 0


@pytest.mark.parametrize("remover_too", [False, True])
def test_the_folder_of_a_killed_sandbox_is_removed(
    remover_too: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which ends its runs: immediately, or by the next sandbox where all its processes were killed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    killed = "os.kill(sandbox._remover.pid, 9); " * remover_too + "os.kill(os.getpid(), 9)"
    program = f"import os; from disttui.runner.transport.sandbox import Sandbox; sandbox = Sandbox(['a']); {killed}"
    (tmp_path / "disttui-sandbox-begun").mkdir()
    with Sandbox(["a"]) as lives:
        subprocess.run([sys.executable, "-c", program], check=False)
        if remover_too:
            assert len(list(tmp_path.iterdir())) == 3
            Sandbox(["b"]).close()
        remaining = {"disttui-sandbox-begun", lives.config.parent.name}
        wait_for(lambda: {path.name for path in tmp_path.iterdir()} == remaining)


def test_homes_in_a_folder_of_the_caller_stay(tmp_path: Path) -> None:
    with Sandbox(["node1", "a/../b", "node1"], folder=tmp_path) as played:
        output(played.connect(Address("node1")), "echo log > log")
        assert output(played.connect(Address("a/../b")), "pwd").startswith(f"{tmp_path}/a_.._b")
    assert (tmp_path / "node1" / "log").read_text() == "log\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_.._b-1", "node1"]


def test_hosts_are_there_at_once() -> None:
    with Sandbox([f"n{index}" for index in range(16)]) as played:
        assert output(played.connect(Address("n15")), "echo in") == "in\n"


def test_a_run_knows_whether_its_sandbox_lives(tmp_path: Path) -> None:
    """So it is reached from elsewhere while it does, and is lost when it ends, also by a kill, which leaves files."""
    with Sandbox(["node1"]) as played:
        run = KnownRun("r-1", tmp_path, (KnownHost("node1", "node1"),), {}, "~/.disttui/runs", 1.0, "me",
                       ssh_config=str(played.config), sandbox=True)  # fmt: skip
        assert run.summary()["state"] == "unknown"
        with Viewer({}) as viewer, closing(viewer.link_to(run, 0)) as link:
            assert link.request("list", run_dir=run.run_dir) == {"runs": [], "more": False}
        left = tmp_path / "config"
        left.write_text(played.config.read_text())
    assert run.summary()["state"] == "lost"
    assert replace(run, ssh_config=str(left)).gone


@pytest.mark.root
def test_config_owned_by_another_user_is_not_a_sandbox(tmp_path: Path) -> None:
    """It could name a command to run."""
    config = tmp_path / "config"
    with config.open("w") as file:
        assert private.lock(file.fileno(), 0.0)
        assert private.in_use(config)
        os.chown(config, 65534, 65534)
        assert not private.in_use(config)
        os.chown(config, 0, 0)
        os.chown(tmp_path, 65534, 65534)
        assert not private.in_use(config)
