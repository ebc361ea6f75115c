"""Whatever bytes come to the gang's port or from it: a stranger's cost its own connection, a bad host's its own part.

10,000 inputs in all; DISTTUI_FUZZ=1000000 tries as many as it says (docs/architecture.md).
"""

from __future__ import annotations

import gc
import json
import os
import random
import selectors
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disttui.runner.node.gang import follower as follower_module
from disttui.runner.node.gang import messages
from disttui.runner.node.gang.follower import Follower
from disttui.runner.node.gang.gang import Gang, Phase
from disttui.runner.node.gang.leader import Leader
from disttui.runner.node.gang.link import BrokenWireError, Channel, WireSession
from disttui.runner.node.host import HostPart, plan_hash
from disttui.runner.node.loop import Loop
from disttui.runner.node.supervise import member
from disttui.runner.node.supervise.member import Member

pytestmark = pytest.mark.timeout(0 if "DISTTUI_FUZZ" in os.environ else 240)
INPUTS = int(os.environ.get("DISTTUI_FUZZ", "10000"))
_PROPERTIES = 5
_MUTANTS = 10
"""Inputs that are made of each one that hypothesis draws, itself included: drawing is what takes the time."""
_EXAMPLES = max(1, INPUTS // _PROPERTIES // _MUTANTS)
_ROUND = 2000
KEY = b"k" * 32


def rounds(check: Callable[[], None]) -> None:
    """Run a property in rounds, since hypothesis remembers all inputs of one."""
    for _ in range(max(1, _EXAMPLES // _ROUND)):
        check()


def mutants(junk: bytes, seed: int) -> Iterator[bytes]:
    """The bytes as they are, and with some changed, cut, doubled or moved."""
    yield junk
    pick = random.Random(seed)
    for _ in range(_MUTANTS - 1):
        new = bytearray(junk)
        for _ in range(pick.randint(1, 4)):
            at, other = sorted((pick.randint(0, len(new)), pick.randint(0, len(new))))
            how = pick.randrange(4)
            if how == 0 and new:
                new[pick.randrange(len(new))] = pick.choice(b'0a{["\\\xff\0\4')
            elif how == 1:
                del new[at : min(other, at + 40)]
            elif how == 2:
                new[at:at] = new[at : min(other, at + 40)]
            else:
                new[at:at] = pick.randbytes(pick.randint(1, 8))
        yield bytes(new)


def altered(words: list[dict[str, Any]], seed: int) -> Iterator[list[dict[str, Any]]]:
    """The messages as they are, and with fields that are gone, wrong or those of other messages."""
    yield words
    pick = random.Random(seed)
    for _ in range(_MUTANTS - 1):
        new = []
        for word in words:
            kind = pick.choice(_KINDS)
            fields = next((table[kind] for table in _TABLES if kind in table), {})
            more = {field.rstrip("?"): pick.choice(_POOL) for field in fields if pick.random() < 0.95}
            new.append({**word, **more, "k": kind} if pick.random() < 0.8 else word)
        yield new


fuzz = settings(
    max_examples=min(_ROUND, _EXAMPLES), deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.floats(), st.text(max_size=5),
    st.sampled_from([10**400, -(10**400), 2**63, 1e308, "\ud800", "127.0.0.1", "1" * 5000, 5, [], {}, [[]]]),
)  # fmt: skip
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.dictionaries(st.sampled_from(["0", "1", "node", "rank", "kind", "type", "message", "code", "at"]), scalars),
)
_TABLES = (messages.HELLO, messages.ANSWER, messages.OF_FOLLOWER, messages.OF_LEADER)
_KINDS = sorted({kind for table in _TABLES for kind in table} | {"listening", "__init__"})
_FIELDS = sorted({field.rstrip("?") for table in _TABLES for fields in table.values() for field in fields})
_CAUSE = {"node": 1, "rank": 1, "kind": "exception", "type": "E", "message": "m", "code": None, "at": 1.0}
_POOL: list[Any] = [
    None, True, False, 0, 1, 2, -1, 5, 10**400, 2**63, 1.5, float("nan"), float("inf"), 1e308, "", "0", "user",
    "\ud800", "127.0.0.1", "::1", "finished", "x" * 5000, [], [1], ["127.0.0.1"], [[]], {}, {"0": 1.0}, {"x": 1},
    _CAUSE, {**_CAUSE, "at": "now"}, {**_CAUSE, "code": 2.5}, {**_CAUSE, "more": [1]}, {**_CAUSE, "kind": "launch"},
]  # fmt: skip
seeds = st.integers(0, 2**32)
said = st.builds(
    lambda kind, fields, number: {"k": kind, **fields, **({} if number is None else {"id": number})},
    st.sampled_from(_KINDS) | scalars,
    st.dictionaries(st.sampled_from(_FIELDS), values, max_size=6),
    scalars,
)
_DEEP = [b"[" * 980, b"[" * 100_000, b'{"nonce":"\\ud800"}', b'{"a":' * 900, b"\xff" * 40, b"GET / HTTP/1.1\r\n\r\n"]
parts = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"0" * 32, b"0123456789abcdef" * 2, *_DEEP]),
    st.builds(lambda n: struct.pack(">I", n), st.integers(0, 2**32 - 1) | st.integers(0, 1200)),
    st.builds(lambda junk: struct.pack(">I", 32 + len(junk)) + bytes(32) + junk, st.binary(max_size=60)),
)
stranger = st.lists(parts, max_size=4).map(b"".join)


@pytest.mark.parametrize("leads", [True, False])
def test_a_stranger_s_bytes_are_no_message(leads: bool) -> None:
    @fuzz
    @given(stranger, st.booleans(), seeds)
    def check(drawn: bytes, greeted: bool, seed: int) -> None:
        for junk in mutants(drawn, seed):
            session = WireSession(KEY, leads)
            try:
                if greeted:
                    session.feed(b"0" * 32)
                assert session.feed(junk) == []
                assert len(session._buffer) <= 4 + 1024
            except BrokenWireError:
                pass

    rounds(check)


class Turns(Loop):
    """A loop that goes round when it is asked to."""

    def turn(self) -> None:
        for key, events in self._selector.select(0):
            reader, writer = key.data
            if events & selectors.EVENT_READ and reader:
                reader()
            if events & selectors.EVENT_WRITE and writer:
                writer()
        self._fire(time.monotonic())

    def close(self) -> None:
        self._selector.close()


class Door:
    """In place of a listening socket: what knocks comes from a socketpair."""

    def __init__(self) -> None:
        self._ours, self._bell = socket.socketpair()
        self._waiting: list[socket.socket] = []

    def fileno(self) -> int:
        return self._ours.fileno()

    def setsockopt(self, *_: Any) -> None:
        pass

    def knock(self) -> socket.socket:
        near, far = socket.socketpair()
        far.setblocking(False)
        self._waiting.append(near)
        self._bell.send(b"x")
        return far

    def accept(self) -> tuple[socket.socket, None]:
        self._ours.recv(1)
        return self._waiting.pop(0), None

    def close(self) -> None:
        for sock in (self._ours, self._bell, *self._waiting):
            sock.close()


def host_of(node: int, folder: str = "/nonexistent") -> HostPart:
    launch = {"ports": [1, 2], "join_timeout": 60, "host_timeout": 60, "rejoin_timeout": 0, "restarts": 1, "grace": 1}
    spec: Any = {
        "run": "fuzz", "node_rank": node, "hosts": ["a", "b", "c"], "nproc": [1, 1, 1], "launch": launch,
        "target": {}, "leader": None,
    }  # fmt: skip
    return HostPart(spec, folder, "", None, {"key": KEY.hex()}, 0o022)


class Peer:
    """The far end of a connection, with the key."""

    def __init__(self, sock: socket.socket, leads: bool) -> None:
        self.sock = sock
        self.session = WireSession(KEY, leads)
        self.heard: list[messages.Unread] = []
        sock.send(self.session.greeting())

    def read(self) -> bool:
        """Take what has come; whether the connection stands."""
        try:
            while data := self.sock.recv(1 << 16):
                self.heard += self.session.feed(data)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def say(self, message: dict[str, Any]) -> None:
        payload = json.dumps(message).encode()  # with NaN and infinities, unlike `pack`
        proof = self.session._proof(self.session._leads, self.session._sent, payload)
        self.session._sent += 1
        try:
            self.sock.send(struct.pack(">I", 32 + len(payload)) + proof + payload)
        except OSError:
            pass  # it has been closed

    def hello(self, node: int) -> None:
        plan = plan_hash(host_of(node).spec)
        self.say({"k": "hello", "run": "fuzz", "node": node, "spec": plan, "instance": f"i{node}", "probe": False})


class Gate:
    """A leader with its gang at a door, and host 1 that has joined and goes on to live."""

    def __init__(self) -> None:
        self.loop, self.door = Turns(), Door()
        self.events: list[Any] = []
        self.gang = Gang(host_of(0), self.loop, self.events.append, self._send, ["127.0.0.1"])
        server: Any = self.door
        self.leader = Leader(host_of(0), self.loop, server, self.gang, self.events.append)
        self.one = self.join(1)
        self.beats = 0

    def _send(self, node: int, message: Any) -> None:
        if node:
            self.leader.send(node, message)

    def join(self, node: int) -> Peer:
        peer = Peer(self.door.knock(), leads=False)
        self.loop.turn()
        assert peer.read()
        peer.hello(node)
        self.turn()
        assert peer.read() and {"k": "welcome"} in peer.heard
        return peer

    def turn(self) -> None:
        for _ in range(3):
            self.loop.turn()

    def check(self) -> None:
        """Host 1 is heard, and what it is sent arrives."""
        self.beats += 1
        before = self.leader._followers[1].link.heard
        self.one.say({"k": "beat", "t": 1.0, "ack": 0, "attempt": 1, "idle": False})
        self.turn()
        assert self.leader._followers[1].link.heard > before
        assert self.one.read()
        assert json.dumps(self.events, allow_nan=False)

    def close(self) -> None:
        self.one.sock.close()
        for stranger in list(self.leader._strangers):
            self.leader._drop(stranger)
        for follower in self.leader._followers.values():
            if follower.link.channel:
                follower.link.channel.close()
        self.door.close()
        self.loop.close()


def test_stranger_at_the_leader_port_loses_only_its_connection() -> None:
    gate = Gate()

    @fuzz
    @given(stranger, st.booleans(), seeds)
    def check(drawn: bytes, greeted: bool, seed: int) -> None:
        for junk in mutants(drawn, seed):
            with closing(gate.door.knock()) as sock:
                sock.send(b"0" * 32 * greeted + junk)
                gate.check()
        gate.turn()
        assert not gate.leader._strangers
        assert [e["e"] for e in gate.events if e["e"] != "clock"] == ["join"]

    rounds(check)
    gate.close()


def test_a_host_with_the_key_ends_no_other_host_by_what_it_says() -> None:
    def hear(words: list[dict[str, Any]], numbered: bool, phase: str) -> None:
        with closing(Gate()) as gate:
            bad = gate.join(2) if numbered else Peer(gate.door.knock(), leads=False)
            gate.turn()
            bad.read()
            gate.gang._phase = Phase(phase)
            for number, word in enumerate(words, 1):
                bad.say({**word, "id": number} if numbered else word)
            gate.check()
            gate.gang._look_at_health()
            bad.sock.close()

    @fuzz
    @given(st.lists(said, max_size=5), st.booleans(), seeds)
    def check(drawn: list[dict[str, Any]], numbered: bool, seed: int) -> None:
        phases = ("joining", "running", "ending") if numbered else ("joining",)
        for number, words in enumerate(altered(drawn, seed)):
            hear(words, numbered, phases[number % len(phases)])

    rounds(check)


def test_a_leader_with_the_key_brings_no_follower_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(2, "no such file", b"python")

    monkeypatch.setattr(follower_module, "_TRY", 600.0)  # of real time, which a busy machine takes
    monkeypatch.setattr(member, "LauncherProcess", refuse)
    monkeypatch.setattr("disttui.runner.node.observe.stacks.keep", lambda *_: None)
    with tempfile.TemporaryDirectory() as folder:

        def hear(words: list[dict[str, Any]], numbered: bool, junk: bytes) -> None:
            loop = Turns()
            events: list[Any] = []
            host = host_of(1, folder)
            sent: list[Any] = []
            part = Member(host, loop, events.append, sent.append, lambda verdict: None)
            follower = Follower(
                host, loop, events.append, part.receive, lambda: None, lambda: part.rest, lambda *_: None
            )
            near, far = socket.socketpair()
            liar, lying = socket.socketpair()
            lying.setblocking(False)
            lying.send(junk)
            follower._shake("127.0.0.2", liar, True)
            follower._shake("127.0.0.1", near, False)
            far.setblocking(False)
            peer = Peer(far, leads=True)
            for _ in range(3):
                loop.turn()
            assert peer.read() and peer.heard[0]["k"] == "hello"
            if numbered:
                peer.say({"k": "welcome"})
            for number, word in enumerate(words, 1):
                peer.say({**word, "id": number} if numbered else word)
            for _ in range(3):
                loop.turn()
            assert json.dumps(events, allow_nan=False)
            for word in sent:
                messages.read(word, messages.OF_FOLLOWER)
            for sock in (near, far, liar, lying):
                sock.close()
            loop.close()
            (Path(folder) / "stop").unlink(missing_ok=True)

        @fuzz
        @given(st.lists(said, max_size=5), st.booleans(), stranger, seeds)
        def check(drawn: list[dict[str, Any]], numbered: bool, junk: bytes, seed: int) -> None:
            for words in altered(drawn, seed):
                hear(words, numbered, junk)

        rounds(check)


def test_a_closed_connection_is_freed_at_once() -> None:
    """Without the collector of cycles, and without waiting for the limit of the handshake."""
    gate = Gate()
    gc.collect()
    gc.disable()
    try:
        for _ in range(1000):
            sock = gate.door.knock()
            sock.send(b"0" * 32 + b"\0\0\4\0" + b"x" * 900)
            gate.loop.turn()
            sock.close()
            gate.loop.turn()
        gate.turn()
        assert sum(isinstance(one, Channel) for one in gc.get_objects()) < 20
        assert len(gate.loop._timers) < 20
    finally:
        gc.enable()
        gate.close()
