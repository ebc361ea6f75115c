"""Who knocks at the gang's port: strangers, a second supervisor of the same node, and a port that cannot be had."""

from __future__ import annotations

import random
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.node import procs
from runner.node.gang.follower import Follower
from runner.node.host import Host
from runner.node.loop import Loop
from tests.unit.runs_kit import SLEEP, Make, making, same

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Make]:
    yield from making(tmp_path)


def test_strangers_at_the_door_cost_nothing(cluster: Make) -> None:
    run = cluster("step(1)", [1, 1])
    run.start(0)
    door = ("127.0.0.1", run.gang["port"])
    held = []
    for junk in (
        b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 1 << 30), struct.pack(">I", 65536) + b"[" * 65536,
        struct.pack(">I", 2) + b"{}",
        struct.pack(">I", 44) + b'{"nonce":"0123456789abcdef0123456789abcdef"}' + b"\0" * 9,
        *[random.Random(seed).randbytes(200) for seed in range(100)],
    ):  # fmt: skip
        sock = socket.create_connection(door)
        sock.sendall(junk)
        held.append(sock)
    run.start(1)
    assert same(run)["state"] == "finished"
    assert run.log(0) == ""
    assert {e["node"] for e in run.events(0, "join")} == {0, 1}


def test_a_second_supervisor_of_the_same_node_is_refused(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1, 1])
    run.start(0, 1)
    run.wait_event(0, "join", node=1)
    # Inside this process, since by its tag it would own the first one's processes.
    told: list[tuple[str, str]] = []
    loop = Loop()
    host = Host(run.spec(1), str(run.base), str(run.zip), None, run.secrets(), 0o022)

    def lost(kind: str, why: str, last: float | None) -> None:
        told.append((kind, why))
        loop.stop()

    Follower(host, loop, lambda event: None, lambda message: None, lambda: None, lost).start()
    loop.after(20, loop.stop)
    loop.run()
    assert told == [("join", "the leader refuses this host: another supervisor has joined as this host and is alive")]
    assert procs.alive(run.supervisor(1))
    run.stop(0)
    assert run.exit(1)["state"] == "stopped"


def test_no_free_gang_port_is_said_at_start(cluster: Make) -> None:
    from runner.node.problem import Problem

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = cluster(SLEEP, [1, 1], launch={"ports": [port, port]})
        with pytest.raises(Problem, match="no free port"):
            run.start(0)
    assert run.exit(0)["state"] == "failed"
    run.start(0)
    assert not run.path(0, "exit.json").exists()
