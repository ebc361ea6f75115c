"""Connections to the gang's port: strangers, a second supervisor of the same node; and a port that is in use."""

from __future__ import annotations

import random
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node import procs
from disttui.runner.node.gang.follower import Follower
from disttui.runner.node.host import HostPart
from disttui.runner.node.loop import Loop
from tests.unit.runs_kit import SLEEP, Make, same

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


_GREETING = b"0123456789abcdef" * 2
_DEEP = [b"[" * 980 + b"]" * 980, b'{"m":' * 980 + b"1" + b"}" * 980, b"[" * 100_000, b'{"a":' * 100_000]
_OLD_NONCES = [b'{"nonce":"' + b"\\ud800" * 32 + b'"}', b'{"nonce":"' + b"0" * 32 + b'"}']
_OLD_FRAMES = [b'{"n":0,"m":{},"h":""}', b'{"n":0,"h":"","m":' + b'{"m":' * 980 + b"1" + b"}" * 981]
"""Of a wire that parsed before it had seen a proof."""


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


_HOSTILE = [
    b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 1 << 30), struct.pack(">I", 65536) + b"[" * 65536,
    *[framed(nonce, frame) for nonce in _OLD_NONCES for frame in _OLD_FRAMES],
    *[framed(junk) for junk in (b"{}", *_DEEP)],
    *[_GREETING + struct.pack(">I", 32 + len(junk)) + bytes(32) + junk for junk in (b'{"n":0,"m":"\\ud800"}', *_DEEP)],
    _GREETING + struct.pack(">I", 31) + bytes(31),
    _GREETING + struct.pack(">I", 1024) + bytes(1000),
    _GREETING.upper(),
    *[random.Random(seed).randbytes(200) for seed in range(100)],
]  # fmt: skip


def attack(door: tuple[str, int], junk: bytes) -> socket.socket:
    """Knock and send; whether it is all taken is the other side's affair."""
    sock = socket.create_connection(door)
    sock.setblocking(False)
    with suppress(OSError):
        sock.send(junk)
    return sock


class Liar:
    """Stands where followers look for the leader: lies to the first ones, then hands on and keeps what it hears."""

    def __init__(self, port: int, lies: list[bytes]) -> None:
        self.heard: list[bytearray] = []
        self._target = ("127.0.0.1", port)
        self._lies = [*lies]
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        held = []
        while True:
            near, _ = self._server.accept()
            if self._lies:
                near.setblocking(False)
                with suppress(OSError):
                    near.send(self._lies.pop())
                held.append(near)
                continue
            far = socket.create_connection(self._target)
            self.heard.append(bytearray())
            for one, other, kept in ((near, far, self.heard[-1]), (far, near, bytearray())):
                threading.Thread(target=self._pump, args=(one, other, kept), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while data := one.recv(4096):
                kept += data
                other.sendall(data)
        other.close()


def test_strangers_at_the_door_cost_nothing(cluster: Make, tmp_path: Path) -> None:
    """Before the others have joined, while they train, and with what they have said themselves."""
    flag = tmp_path / "go on"
    run = cluster(f"step(1)\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)", [1, 1])
    run.start(0)
    door = ("127.0.0.1", run.gang["port"])
    held = [attack(door, junk) for junk in _HOSTILE]
    liar = Liar(run.gang["port"], [])
    run.gang = {**run.gang, "port": liar.port}
    run.start(1)
    run.wait_ranks()
    held += [attack(door, junk) for junk in _HOSTILE]
    said = [bytes(heard) for heard in liar.heard]
    assert any(len(heard) > 300 for heard in said)
    for heard in said:
        cuts = (32, 36, 40, 100, len(heard) // 2, len(heard))
        held += [attack(door, heard[:cut]) for cut in cuts] + [attack(door, _GREETING + heard[32:])]
    run.wait_event(0, "step")
    flag.touch()
    assert same(run)["state"] == "finished"
    assert run.log(0) == "" and run.log(1) == ""
    assert {e["node"] for e in run.events(0, "join")} == {0, 1}
    assert not run.events(0, "host") and not run.events(0, "note"), "nobody was lost, and nothing is worth a word"


def test_a_listener_that_lies_keeps_no_follower_from_its_leader(cluster: Make) -> None:
    run = cluster("step(1)", [1, 1])
    run.start(0)
    run.gang = {**run.gang, "port": Liar(run.gang["port"], _HOSTILE[1:13:2]).port}
    run.start(1)
    assert same(run)["state"] == "finished"
    assert run.log(0) == "" and run.log(1) == ""
    assert any("not this run's leader" in e["problem"] for e in run.events(1, "dial"))


def test_ten_thousand_strangers_cost_no_memory(cluster: Make) -> None:
    """Two thousand that send 64 KiB each, all within the handshake's limit: they would hold 130 MB together."""
    run = cluster(SLEEP, [1, 1])
    run.start(0)
    door = ("127.0.0.1", run.gang["port"])
    pid = run.supervisor(0)["pid"]

    def memory() -> int:
        [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) * 1024

    before = memory()
    held = []
    largest = 0
    for number in range(2000):
        # What the framing takes for the beginning of one long frame, so that all of it must be waited for.
        length = (65536, 1024)[number % 2]
        held.append(attack(door, _GREETING + struct.pack(">I", length) + b"x" * 65000))
        if len(held) > 300:
            held.pop(0).close()
        if number % 100 == 99:
            largest = max(largest, memory())
    run.stop(0)
    assert run.exit(0)["state"] == "stopped"
    assert largest - before < 16 << 20, f"{(largest - before) >> 20} MiB"
    assert run.log(0) == ""


def test_a_second_supervisor_of_the_same_node_is_refused(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1, 1])
    run.start(0, 1)
    run.wait_event(0, "join", node=1)
    # Inside this process, since by its tag it would own the first one's processes.
    seen: list[tuple[str, str]] = []
    loop = Loop()
    host = HostPart(run.spec(1), str(run.base), str(run.zip), None, run.secrets(), 0o022)

    def lost(kind: str, why: str, last: float | None) -> None:
        seen.append((kind, why))
        loop.stop()

    def rest() -> Any:
        return {"attempt": 1, "idle": True}

    Follower(host, loop, lambda event: None, lambda message: None, lambda: None, rest, lost).start()
    loop.after(20, loop.stop)
    loop.run()
    assert seen == [("join", "the leader rejected this host: another supervisor of this host has joined")]
    assert procs.alive(run.supervisor(1))
    run.stop(0)
    assert run.exit(1)["state"] == "stopped"


def test_no_free_gang_port_is_said_at_start(cluster: Make) -> None:
    from disttui.runner.node.problem import Problem

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = cluster(SLEEP, [1, 1], launch={"ports": [port, port]})
        with pytest.raises(Problem, match="no free port"):
            run.start(0)
    assert run.exit(0)["state"] == "failed"
    run.start(0)
    assert not run.path(0, "exit.json").exists()
