"""Every run ends: the supervisors' own code on a simulated network and clock, whatever is lost, late, doubled or moved.

What is simulated stands at the edges: sockets, time, files and the processes of an attempt. A rank that has lost a peer
waits for ever, as the worst of them do.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import heapq
import itertools
import os
import random
import signal
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disttui.runner.node import journal, procs
from disttui.runner.node.gang import follower, gang, health, leader, link, membership
from disttui.runner.node.host import HostPart
from disttui.runner.node.loop import Timer
from disttui.runner.node.supervise import member, supervisor

_EXAMPLES = max(100, int(os.environ.get("DISTTUI_FUZZ", "0")) // 400)
_HOST_TIMEOUT, _GRACE, _REJOIN = 12, 2, 25
_SHOWS = 4.0
"""Seconds of an attempt after which its ranks show that they train."""
_FAULTS_END = 150.0
_BY_THEN = _FAULTS_END + 400.0
"""Seconds after which nothing may live any more: each attempt's own limits, one after the other."""


class World:
    """The clock, what is due, the network between hosts, and what the job does."""

    def __init__(self, plan: list[Fate], seed: int) -> None:
        self.now = 1000.0
        self.random = random.Random(seed)
        self.plan = plan
        self._order = itertools.count()
        self._due: list[tuple[float, int, Timer, Loop]] = []
        self.cut: set[int] = set()
        self.pipes: list[Socket] = []
        self.server: Server | None = None
        self.hosts: list[Sim] = []
        self.files: dict[str, Any] = {}
        self.story: list[tuple[float, int, Any]] = []
        self.own = Loop(self)

    def push(self, timer: Timer, loop: Loop) -> Timer:
        heapq.heappush(self._due, (timer.when, next(self._order), timer, loop))
        return timer

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until and any(host.alive for host in self.hosts):
            self.now, _, timer, loop = heapq.heappop(self._due)
            if timer.cancelled or loop.over:
                continue
            timer.callback()
            if timer.interval is not None and not timer.cancelled:
                timer.when = self.now + timer.interval
                self.push(timer, loop)

    def plug(self, node: int, cut: bool) -> None:
        """Cut a host off, or connect it again: the kernel repeats what was lost, or has given up meanwhile."""
        (self.cut.add if cut else self.cut.discard)(node)
        for pipe in [pipe for pipe in self.pipes if node in pipe.ends and not cut]:
            pipe.deliver()

    def reset(self, node: int) -> None:
        """Break all connections of a host; what is under way is lost."""
        for pipe in [pipe for pipe in self.pipes if node in pipe.ends]:
            pipe.flying.clear()
            pipe.hang_up(errno.ECONNRESET)

    def begin(self, number: int) -> None:
        """Let the ranks of an attempt run, once every host has its part of it."""
        parts = [host.attempt for host in self.hosts]
        if any(part is None or part.number != number or not part.started or not part.launcher for part in parts):
            return
        fate = self.plan[(number - 1) % len(self.plan)]
        for node, part in enumerate(parts):
            assert part is not None
            part.met = self.now
            if fate.node is None or fate.node == node:
                part.loop.after(fate.after + 0.01 * node, functools.partial(part.fall, fate.node is not None))


class Fate(NamedTuple):
    """What becomes of an attempt that all hosts are in: a rank of `node` raises, or (None) all ends well."""

    node: int | None
    after: float


class Loop:
    """One host's loop; its timers are the world's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.over = False

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._world.push(Timer(self._world.now + seconds, callback, None), self)

    def every(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._world.push(Timer(self._world.now + seconds, callback, seconds), self)

    def soon(self, callback: Callable[[], None]) -> None:
        self.after(0, callback)

    def watch(self, sock: Any, reader: Any, writer: Any = None) -> None:
        sock.reader, sock.writer = reader, writer
        sock.loop = self
        sock.wake()

    def forget(self, sock: Any) -> None:
        sock.reader = sock.writer = None

    def stop(self) -> None:
        self.over = True


class Socket:
    """One end of a connection. Bytes arrive in order and once, late, or never."""

    def __init__(self, world: World, node: int) -> None:
        self.world = world
        self.node = node
        self.other: Socket | None = None
        self.loop: Loop | None = None
        self.reader: Any = None
        self.writer: Any = None
        self.arrived = b""
        self.flying: list[bytes] = []
        self.code = 0
        self.writable = False
        self.ended = False
        self.closed = False

    @property
    def ends(self) -> set[int]:
        return {self.node, self.other.node} if self.other else {self.node}

    def setblocking(self, _: bool) -> None:
        pass

    def setsockopt(self, *_: Any) -> None:
        pass

    def getsockopt(self, *_: Any) -> int:
        return self.code

    def connect_ex(self, _: Any) -> int:
        self.world.own.after(self.world.random.uniform(0.001, 0.2), self._connect)
        return errno.EINPROGRESS

    def _connect(self) -> None:
        if self.closed or self.world.cut & {0, self.node}:
            return  # nothing comes back; who dials has a limit of its own
        if self.world.server is None:
            self.code = errno.ECONNREFUSED
        else:
            self.other = Socket(self.world, 0)
            self.other.other = self
            self.world.pipes += [self, self.other]
            self.world.server.waiting.append(self.other)
            self.world.server.wake()
        self.writable = True
        self.wake()

    def wake(self) -> None:
        loop = self.loop
        if loop is None:
            return
        if self.writer and (self.writable or self.other):
            loop.soon(self._may_write)
        if self.reader and (self.arrived or self.ended):
            loop.soon(self._may_read)

    def _may_write(self) -> None:
        if self.writer:
            self.writer()

    def _may_read(self) -> None:
        if self.reader and (self.arrived or self.ended):
            self.reader()

    def send(self, data: bytes) -> int:
        if self.closed or self.code:
            raise OSError(self.code or errno.EBADF, os.strerror(self.code or errno.EBADF))
        other = self.other
        assert other is not None
        other.flying.append(data)
        self.world.own.after(self.world.random.uniform(0.001, 0.3), other.deliver)
        return len(data)

    def deliver(self) -> None:
        if self.world.cut & self.ends:
            return
        self.arrived += b"".join(self.flying)
        self.flying.clear()
        if self.other and self.other.closed:
            self.ended = True
        self.wake()

    def hang_up(self, code: int) -> None:
        self.code, self.ended = code, True
        self.wake()

    def recv(self, size: int) -> bytes:
        if self.closed:
            raise OSError(errno.EBADF, "closed")
        data, self.arrived = self.arrived[:size], self.arrived[size:]
        if data:
            self.wake()
            return data
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        if self.ended:
            return b""
        raise BlockingIOError

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.world.pipes = [pipe for pipe in self.world.pipes if pipe is not self]
            if self.other:
                self.world.own.after(0.05, self.other.deliver)


class Server(Socket):
    """Where the leader takes joins."""

    def __init__(self, world: World) -> None:
        super().__init__(world, 0)
        self.waiting: list[Socket] = []

    def wake(self) -> None:
        if self.loop and self.waiting:
            self.loop.soon(self._may_accept)

    def _may_accept(self) -> None:
        if self.reader and self.waiting:
            self.reader()

    def accept(self) -> tuple[Socket, None]:
        sock = self.waiting.pop(0)
        self.wake()
        return sock, None


class Ranks:
    """What an attempt knows of its ranks, as far as a member asks."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        self.failed: set[int] = set()
        self.process_group = types.SimpleNamespace(end=lambda: None)
        self.watch = types.SimpleNamespace(take=list)
        self.signs = types.SimpleNamespace(message=lambda *_: {"k": "signs", "silent": {}, "times": {}, "shows": []})

    def living(self) -> set[int]:
        return set()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Attempt:
    """A launcher without processes."""

    def __init__(self, sim: Sim, number: int, fail: Callable[[dict[str, Any]], None]) -> None:
        self.sim, self.loop, self.number, self.fail = sim, sim.loop, number, fail
        self.launcher: int | None = next(sim.pids)
        self.pid = self.launcher
        self.started = False
        self.met: float | None = None
        """When every host had its part of it."""
        self.well = False
        self.mpi = None
        self.port = None
        self.ranks = Ranks()
        assert not sim.living, "two attempts at once on one host"
        sim.attempt = self
        sim.living[self.pid] = self

    @property
    def gets_term(self) -> int | None:
        return self.launcher

    def go(self, master: str, port: int, server: None, mpi: None = None) -> None:
        self.started = True
        self.sim.world.begin(self.number)

    def fall(self, badly: bool) -> None:
        """A rank raises, and then the launcher ends; or everything ends well, and the launcher may linger."""
        if self.pid not in self.sim.living:
            return
        if not badly and self.sim.world.random.random() < 0.2:
            self.well = True
            return
        if badly:
            self.ranks.failed.add(0)
            at = self.sim.world.now
            fields = {"type": "E", "message": "m", "code": None, "at": at}
            self.fail({"rank": self.sim.node, "kind": "exception", **fields})
        self.loop.after(0.2, lambda: self.die(256 if badly else 0))

    def die(self, status: int) -> None:
        if self.sim.living.pop(self.pid, None):
            self.loop.soon(lambda: self.sim.own.child_ended(self.pid, status))

    def launcher_ended(self, status: int) -> dict[str, Any]:
        self.launcher = None
        return {"code": -9 if status == 9 else status >> 8, "failures": []}

    def launch_failure(self, said: dict[str, Any]) -> dict[str, Any]:
        fields = {"type": "", "message": "torchrun ended", "code": said["code"], "at": self.sim.world.now}
        return {"rank": None, "kind": "launch", **fields}

    def progress(self) -> dict[str, Any]:
        begun = self.met is not None and self.sim.world.now - self.met > _SHOWS
        return {"begun": begun, "saved": True, "step": None}

    def listens(self, port: int) -> bool:
        return self.sim.world.random.random() < 0.3

    def members(self) -> set[int]:
        return set(self.sim.living)

    def tagged(self, found: dict[int, Any]) -> set[int]:
        return set(self.sim.living) & set(found)

    def look(self, last: bool = False) -> None:
        pass


class Ending:
    """Ends what a host runs, of whatever attempt, as the tag of its processes has it."""

    def __init__(self, sim: Sim, grace: float) -> None:
        self._sim = sim
        self._kill = sim.world.now + grace * sim.world.random.random()
        self.seen: set[int] = set()
        self.left: list[Any] = []

    def hurry(self) -> None:
        self._kill = 0.0

    def step(self, now: float) -> float | None:
        if now >= self._kill:
            for attempt in list(self._sim.living.values()):
                attempt.die(signal.SIGKILL)
        return 0.1 if self._sim.living else None


class Sim:
    """One host with its supervisor."""

    def __init__(self, world: World, node: int, nodes: int, launch: dict[str, Any]) -> None:
        self.world, self.node = world, node
        self.pids = itertools.count(1000 * (node + 1))
        self.living: dict[int, Attempt] = {}
        self.attempt: Attempt | None = None
        spec: Any = {
            "run": "sim", "node_rank": node, "hosts": [f"h{n}" for n in range(nodes)], "nproc": [1] * nodes,
            "launch": launch, "target": {}, "leader": {"port": 1, "addresses": ["127.0.0.1"]} if node else None,
        }  # fmt: skip
        host = HostPart(spec, f"/sim/{node}", "", None, {"key": "00" * 32}, 0o022)
        sup = self.sup = supervisor.Supervisor(host, procs.identity(os.getppid()))
        loop: Any = sup._loop
        self.loop: Loop = loop
        self.own = sup._member
        if node == 0:
            sup._gang = sup._new_gang(["127.0.0.1"])
            world.server = Server(world)
            server: Any = world.server
            sup._leader = leader.Leader(host, loop, server, sup._gang, sup._say)
        else:
            sup._follower = sup._new_follower()
        loop.after(world.random.random(), sup._begin)
        loop.every(1.0, sup._tick)

    @property
    def alive(self) -> bool:
        return not self.loop.over or bool(self.living)

    def stop(self, now: bool) -> None:
        """As `disttui stop` does: the file, and the word."""
        self.world.files.setdefault(f"/sim/{self.node}/stop", {"t": self.world.now, "reason": "user", "now": now})
        if not self.loop.over:
            self.sup._asked({"op": "stop", "reason": "user", "now": now})

    def die(self) -> None:
        """The supervisor is killed; its warden ends the ranks."""
        if not self.loop.over:
            self.leave()
            self.living.clear()

    def leave(self) -> None:
        self.loop.stop()
        if self.node == 0:
            self.world.server = None
        for pipe in [pipe for pipe in self.world.pipes if pipe.loop is self.loop or pipe.node == self.node]:
            pipe.close()


class Journal:
    def __init__(self, world: World, path: str) -> None:
        self._world, self._node = world, int(path.split("/")[2])

    def add(self, record: dict[str, Any]) -> None:
        self._world.story.append((round(self._world.now - 1000, 2), self._node, record))

    def flush(self) -> None:
        pass


@contextlib.contextmanager
def simulated(monkeypatch: pytest.MonkeyPatch, world: World, launch: dict[str, Any], nodes: int) -> Iterator[None]:
    """Put the world in place of sockets, clocks, files and processes."""
    clock = types.SimpleNamespace(
        monotonic=lambda: world.now, time=lambda: world.now, strftime=lambda *_: "", localtime=lambda *_: None
    )

    def sim_of(host: HostPart) -> Sim:
        return world.hosts[host.node]

    def attempt(host: HostPart, number: int, loop: Any, say: Any, fail: Any) -> Attempt:
        return Attempt(sim_of(host), number, fail)

    def ending(members: Any, *rest: Any) -> Ending:
        return Ending(members.__self__.sim, rest[2])

    def write_exit(folder: str, end: dict[str, Any]) -> None:
        world.files[f"{folder}/exit.json"] = end
        if end["state"] == "stopped":
            runs = [host.node for host in world.hosts if any(one.started for one in host.living.values())]
            assert not runs, f"{folder} says that the run is stopped, and it runs on {runs}:\n{story(world)}"
        world.hosts[int(folder.split("/")[2])].leave()

    def write_stop(folder: str, reason: str, now: bool) -> None:
        world.files.setdefault(f"{folder}/stop", {"t": world.now, "reason": reason, "now": now})

    def exists(path: str) -> bool:
        return path in world.files

    def socket(*_: Any) -> Socket:
        return Socket(world, dialling[-1])

    dialling = [1]
    real_dial = follower.Follower._dial

    def dial(self: Any, address: str, probe: bool) -> None:
        dialling.append(self._host.node)
        real_dial(self, address, probe)
        dialling.pop()

    fake_os = types.SimpleNamespace(path=types.SimpleNamespace(exists=exists), getpid=lambda: 1, fsdecode=os.fsdecode)
    fake_journal = types.SimpleNamespace(
        is_gone=lambda path: False, read_json=world.files.get, write_exit=write_exit, Journal=Journal
    )
    fake_socket = types.SimpleNamespace(AF_INET=2, AF_INET6=10, SOCK_STREAM=1, SOL_SOCKET=1, SO_ERROR=4, socket=socket)
    sampling = types.SimpleNamespace(shows=list, start=lambda: None, events=list, end=lambda: None, close=lambda: None)
    with monkeypatch.context() as patch:
        for module in (follower, gang, health, leader, link, membership, member, supervisor, journal):
            patch.setattr(module, "time", clock)
        patch.setattr(supervisor, "Loop", lambda: Loop(world))
        patch.setattr(supervisor, "Journal", lambda path: Journal(world, path))
        patch.setattr(supervisor, "Sampling", lambda *_: sampling)
        patch.setattr(supervisor, "journal", fake_journal)
        patch.setattr(supervisor, "os", fake_os)
        patch.setattr(follower, "socket", fake_socket)
        patch.setattr(follower.Follower, "_dial", dial)
        patch.setattr("disttui.runner.node.ports.reserve", lambda *_: (2, None))
        patch.setattr(member, "os", fake_os)
        patch.setattr(member, "write_stop", write_stop)
        patch.setattr(member, "LauncherProcess", attempt)
        patch.setattr(member, "Ending", ending)
        patch.setattr(member, "Leftover", lambda *_, **__: types.SimpleNamespace(look=dict))
        patch.setattr(member, "_LOOK", 1.0)
        patch.setattr(member, "_LISTENS", 0.2)
        for node in range(nodes):
            world.hosts.append(Sim(world, node, nodes, launch))
        yield


class Fault(NamedTuple):
    """`node` is cut off for `lasts` seconds, or loses its connections, or its supervisor is killed."""

    what: str
    node: int
    at: float
    lasts: float


def story(world: World) -> str:
    return "\n".join(map(str, world.story[-40:]))


def play(
    monkeypatch: pytest.MonkeyPatch,
    plan: list[Fate],
    faults: list[Fault],
    stop: tuple[int, float, bool] | None = None,
    restarts: int = 3,
    rejoin: int = _REJOIN,
    seed: int = 0,
) -> World:
    """Run three hosts until nothing lives any more, and see that it comes to that."""
    launch = {
        "ports": [1, 2], "join_timeout": 20, "host_timeout": _HOST_TIMEOUT, "rejoin_timeout": rejoin,
        "restarts": restarts, "grace": _GRACE, "instrument": True,
    }  # fmt: skip
    world = World(plan, seed)
    with simulated(monkeypatch, world, launch, 3):
        for fault in faults:
            if fault.what == "cut":
                world.own.after(fault.at, functools.partial(world.plug, fault.node, True))
                world.own.after(fault.at + fault.lasts, functools.partial(world.plug, fault.node, False))
            elif fault.what == "reset":
                world.own.after(fault.at, functools.partial(world.reset, fault.node))
            else:
                world.own.after(fault.at, world.hosts[fault.node].die)
        if stop:
            world.own.after(stop[1], lambda: world.hosts[stop[0]].stop(stop[2]))
        world.run(1000 + _BY_THEN)
    lives = [(host.node, list(host.living), host.loop.over) for host in world.hosts if host.alive]
    said = story(world)
    assert not lives, f"{lives} at {world.now - 1000:.0f} s\n{said}"
    killed = {fault.node for fault in faults if fault.what == "kill"}
    for node in {0, 1, 2} - killed:
        assert f"/sim/{node}/exit.json" in world.files, said
    assert "ignored an invalid message" not in said
    return world


fates = st.builds(Fate, st.none() | st.integers(0, 2), st.floats(0, 30))
faults = st.builds(
    Fault,
    st.sampled_from(["cut", "cut", "cut", "reset", "reset", "kill"]),
    st.integers(0, 2),
    st.floats(0, _FAULTS_END),
    st.floats(0, 60) | st.just(10_000.0),
)


@settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(fates, min_size=1, max_size=4),
    st.lists(faults, max_size=5),
    st.none() | st.tuples(st.integers(0, 2), st.floats(0, 100), st.booleans()),
    st.integers(0, 3),
    st.sampled_from([0, _REJOIN]),
    st.integers(0, 2**16),
)
def test_every_run_ends(
    plan: list[Fate], faults: list[Fault], stop: tuple[int, float, bool] | None, restarts: int, rejoin: int, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        play(patch, plan, faults, stop, restarts, rejoin, seed)


@pytest.mark.parametrize("away", range(3))
@pytest.mark.parametrize("asked", range(3))
def test_a_host_that_was_away_learns_of_the_stop(monkeypatch: pytest.MonkeyPatch, away: int, asked: int) -> None:
    for lasts in (3.0, 8.0, _HOST_TIMEOUT + 1.0):
        cut = Fault("cut", away, 10.0, lasts)
        world = play(monkeypatch, [Fate(None, 500.0)], [cut], (asked, 11.0, False))
        ends = [world.files[f"/sim/{node}/exit.json"] for node in range(3)]
        assert [(end["state"], end["cause"]) for end in ends] == [("stopped", None)] * 3, story(world)


@pytest.mark.parametrize("seed", range(5))
def test_host_away_for_an_attempt_joins_the_next(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Cut off as attempt 2 begins, back as attempt 3 does: the words of attempt 2 are for nobody any more."""
    for at in range(8):
        cut = Fault("cut", 1, 6.5 + at / 2, _HOST_TIMEOUT + 6 + at)
        world = play(monkeypatch, [Fate(2, 5.0), Fate(None, 20.0)], [cut], seed=seed)
        assert {world.files[f"/sim/{node}/exit.json"]["state"] for node in range(3)} == {"finished"}, story(world)


@settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2), st.floats(3, 30), st.floats(1, _HOST_TIMEOUT + _REJOIN), st.integers(0, 2**16))
def test_lost_host_is_waited_for_in_every_phase(node: int, at: float, lasts: float, seed: int) -> None:
    """A cut at any time after the join, also before an attempt has shown that it trains."""
    with pytest.MonkeyPatch.context() as patch:
        plan = [Fate(2, 5.0), *[Fate(None, 20.0)] * 9]
        world = play(patch, plan, [Fault("cut", node, at, lasts)], restarts=9, seed=seed)
    assert {world.files[f"/sim/{node}/exit.json"]["state"] for node in range(3)} == {"finished"}, story(world)
