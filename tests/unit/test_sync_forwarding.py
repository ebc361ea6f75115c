"""Code trees that hosts get from one another: what leaves the viewer, who may ask, and what a host cannot alter."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from disttui.runner.errors import HostError
from disttui.runner.hosts.link import Link
from disttui.runner.node.serve.forwarding import _context, _serve, _Shared
from disttui.runner.protocol import tree
from disttui.runner.protocol.objects import Store
from disttui.runner.protocol.requests import OBJECT
from disttui.runner.sync import transfer
from disttui.runner.sync.collect import Wanted, collect
from disttui.runner.sync.transfer import TreeParcel, new_certificate, send
from tests.unit.test_sync_transfer import RUN_DIR, Host, host, sent

__all__ = ["host", "sent"]  # fixtures

HOME = "127.0.0.1"


class Hosts:
    """This machine as several hosts, each with a home of its own."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self._host, self._patch = host, monkeypatch
        self.folder, self.store = host.folder, host.store
        self.told: list[tuple[int, str]] = []

    def home(self, node: int) -> Path:
        """A home, with the node program of the first one."""
        home = self._host.tmp_path / f"home{node}"
        if not home.exists():
            cache = home / ".cache/disttui"
            cache.mkdir(parents=True, mode=0o700)
            for path in (self._host.home / ".cache/disttui").glob("*.zip"):
                (cache / path.name).write_bytes(path.read_bytes())
                (cache / path.name).chmod(0o600)
        return home

    def objects(self, node: int) -> Store:
        return Store(str(self.home(node) / ".cache/disttui/objects"))

    def open(self, node: int) -> Link:
        with self._patch.context() as patch:
            patch.setenv("HOME", str(self.home(node)))
            return self._host.open()

    def parcel(self) -> TreeParcel:
        found = collect(Wanted(self.folder), self.store, self._host.tmp_path / "cache")
        return TreeParcel(found.sha256, found.manifest, self.store, new=found.new)

    def send(self, run: str, nodes: Sequence[int]) -> list[Path]:
        """Send the folder; returns the copies."""
        send(
            self.parcel(), [self.open(node) for node in nodes], run=run, run_dir=RUN_DIR, to=f"{RUN_DIR}/{run}/code",
            reopen=lambda place: self.open(nodes[place]), tell=lambda node, kind, note: self.told.append((node, note)),
            addresses=[HOME] * len(nodes),
        )  # fmt: skip
        return [self.home(node) / "runs" / run / "code" for node in nodes]


@pytest.fixture
def hosts(host: Host, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(host, monkeypatch)


def offered(hosts: Hosts, node: int, key: str) -> tuple[dict[str, Any], int, Link, Future[Any]]:
    """The request of a tree, and the port at which a host offers it."""
    parcel = hosts.parcel()
    request = {
        "run": "a-9",
        "run_dir": RUN_DIR,
        "tree": parcel.tree,
        "size": len(parcel.manifest),
        "to": "~/runs/a-9/code",
    }
    heard: SimpleQueue[Any] = SimpleQueue()
    link = hosts.open(node)
    future = link.stream("offer", heard.put, **request, key=key, ports=[0, 0], address=HOME)
    future.add_done_callback(heard.put)
    place = heard.get(timeout=30)
    assert isinstance(place, dict), place.exception()
    assert place["addresses"] == [HOME]
    return request, place["port"], link, future


def test_each_new_byte_leaves_the_viewer_once(hosts: Hosts, sent: list[transfer._Sent]) -> None:
    contents = {f"{number}.bin": os.urandom(100_000) for number in range(20)}
    for name, content in contents.items():
        (hosts.folder / name).write_bytes(content)
    for copy in hosts.send("a-1", range(5)):
        assert {path.name: path.read_bytes() for path in copy.iterdir()} == contents
    assert len(sent) == 21, "the manifest and each file"
    sent.clear()
    (hosts.folder / "new.bin").write_bytes(os.urandom(1_000_000))
    hosts.send("a-2", range(5))
    assert [one.size for one in sent][1:] == [1_000_000]


def test_a_host_that_has_everything_serves_the_others(hosts: Hosts, sent: list[transfer._Sent]) -> None:
    (hosts.folder / "a.bin").write_bytes(content := os.urandom(1_000_000))
    hosts.send("a-1", [3])
    sent.clear()
    assert all((copy / "a.bin").read_bytes() == content for copy in hosts.send("a-2", range(5)))
    assert sent == []


def test_little_is_sent_to_all_from_the_viewer(hosts: Hosts, sent: list[transfer._Sent]) -> None:
    (hosts.folder / "a.py").write_text("1")
    (hosts.folder / "a.bin").write_bytes(os.urandom(1_000_000))
    hosts.send("a-1", range(2))
    assert len(sent) == 3, "a large tree is sent once"
    sent.clear()
    (hosts.folder / "a.py").write_text("edited")
    hosts.send("a-2", range(2))
    assert sorted(one.size for one in sent)[:2] == [6, 6] and len(sent) == 4, "an edit of it twice"
    sent.clear()
    (hosts.folder / "a.bin").write_bytes(os.urandom(1_000_000))
    hosts.send("a-3", range(2))
    assert len(sent) == 2, "and one of the large file once"


def test_what_had_arrived_is_not_fetched_again(hosts: Hosts) -> None:
    (hosts.folder / "a.bin").write_bytes(content := os.urandom(2_000_000))
    name = tree.digest(content)
    with hosts.objects(1).writer(name) as writer:
        writer.write(content[:1_500_000])
    hosts.send("a-1", [0])
    key = new_certificate()
    request, port, _, _ = offered(hosts, 0, key)
    events: list[Any] = []
    peers = [{"port": port, "addresses": [HOME]}]
    answer = hosts.open(1).stream("gather", events.append, **request, key=key, peers=peers).result(30)
    assert answer["placed"] and hosts.objects(1).read(name, 1 << 30) == content
    assert list(hosts.objects(1).begun()) == []


def test_an_object_is_passed_on_while_it_arrives(tmp_path: Path) -> None:
    store, content = Store(str(tmp_path / "objects")), os.urandom(3_000_000)
    manifest = tree.encode([tree.Entry(b"a.bin", "f", len(content), tree.digest(content))])
    request: Any = {"tree": store.add(manifest), "size": len(manifest)}
    pieces = _Shared(store, request, threading.Event()).content(bytes.fromhex(tree.digest(content)), len(content), 0)
    with store.writer(tree.digest(content)) as writer:
        writer.write(content[:1_000_000])
        first = next(pieces)
        assert content.startswith(first) and not store.has(tree.digest(content), len(content))
        writer.write(content[1_000_000:])
        writer.done()
    assert first + b"".join(pieces) == content


def call(port: int, key: str, asked: bytes) -> bytes:
    """What an offering host answers."""
    with socket.create_connection((HOME, port), 10) as sock, _context(key, server=False).wrap_socket(sock) as wire:
        wire.sendall(asked)
        found = b""
        while data := wire.recv(65536):
            found += data
        return found


def test_only_who_has_the_key_is_served_and_only_this_tree(hosts: Hosts) -> None:
    (hosts.folder / "a.bin").write_bytes(b"secret code")
    hosts.send("a-1", [0])
    other = hosts.objects(0).add(b"of another project")
    key = new_certificate()
    request, port, _, future = offered(hosts, 0, key)
    asked = OBJECT.pack(bytes.fromhex(request["tree"]), request["size"], 0)
    foreign = OBJECT.pack(bytes.fromhex(other), len(b"of another project"), 0)
    assert call(port, key, asked + foreign) == hosts.parcel().manifest, "and nothing of another tree"
    with pytest.raises(OSError, match=r"(?i)ssl|tls|closed|reset|EOF|certificate"):
        assert call(port, new_certificate(), asked) != b""
    with socket.create_connection((HOME, port), 10) as stranger:
        stranger.settimeout(10)
        stranger.sendall(asked)
        with contextlib.suppress(ConnectionResetError):
            assert b"secret" not in stranger.recv(65536)
    assert not future.done(), "strangers disturb nobody"


class Liar:
    """A host that has the key and serves other bytes."""

    def __init__(self, key: str, bends: Callable[[bytes, int], bytes], *, once: bool = False) -> None:
        self.asked, self._once = 0, once
        self._bends, self._context = bends, _context(key, server=True)
        self._door = socket.create_server((HOME, 0))
        self.place = {"port": self._door.getsockname()[1], "addresses": [HOME]}
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                with self._door.accept()[0] as sock, self._context.wrap_socket(sock, server_side=True) as wire:
                    while len(head := wire.recv(OBJECT.size)) == OBJECT.size:
                        self.asked += 1
                        name, size, _ = OBJECT.unpack(head)
                        wire.sendall(data := self._bends(name, size))
                        if self._once and len(data) < size:
                            self.close()
                            return
            except (OSError, ssl.SSLError):
                if self._door.fileno() < 0:
                    return

    def close(self) -> None:
        self._door.close()


@pytest.fixture
def liars() -> Iterator[list[Liar]]:
    made: list[Liar] = []
    yield made
    for one in made:
        one.close()


def evil(objects: Store, name: bytes, size: int) -> bytes:
    return b"x" * size


def evil_object(objects: Store, name: bytes, size: int) -> bytes:
    data = objects.piece(name.hex(), 0, size)
    return data if size < 10_000 else b"x" + data[1:]


@pytest.mark.parametrize("bends", [evil, evil_object])
def test_a_host_that_forwards_can_alter_nothing(
    hosts: Hosts, liars: list[Liar], bends: Callable[[Store, bytes, int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (hosts.folder / "a.bin").write_bytes(content := os.urandom(1_000_000))
    key, objects = new_certificate(), hosts.parcel().store
    liars.append(liar := Liar(key, lambda name, size: bends(objects, name, size)))
    monkeypatch.setattr(transfer, "new_certificate", lambda: key)
    monkeypatch.setattr(transfer._Sender, "offer", lambda self: liar.place)
    assert [(copy / "a.bin").read_bytes() for copy in hosts.send("a-1", range(3))] == [content] * 3
    assert liar.asked >= 2
    assert all(list(hosts.objects(node).begun()) == [] for node in range(3))


def test_a_host_that_goes_silent_is_given_up(
    hosts: Hosts, liars: list[Liar], sent: list[transfer._Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    (hosts.folder / "a.bin").write_bytes(content := os.urandom(1_000_000))
    key = new_certificate()
    store = hosts.parcel().store
    half = lambda name, size: store.piece(name.hex(), 0, size // 2 if size > 10_000 else size)  # noqa: E731
    liars.append(liar := Liar(key, half, once=True))
    monkeypatch.setattr(transfer, "new_certificate", lambda: key)
    monkeypatch.setattr(transfer._Sender, "offer", lambda self: liar.place)
    assert [(copy / "a.bin").read_bytes() for copy in hosts.send("a-1", range(2))] == [content] * 2
    assert sent[-1].offset == 500_000, "the viewer sends what is missing still"


def test_a_first_host_that_fails_keeps_no_other_waiting(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    (hosts.folder / "a.bin").write_bytes(os.urandom(1_000_000))
    real = transfer._Sender.send

    def failing(self: transfer._Sender) -> None:
        if self._node == 0:
            raise HostError("node0", "its disk is full")
        real(self)

    monkeypatch.setattr(transfer._Sender, "send", failing)
    with pytest.raises(HostError, match="its disk is full"):
        hosts.send("a-1", range(3))
    assert not (hosts.home(1) / "runs/a-1/code").exists()


def test_repeated_events_of_a_host_are_not_kept() -> None:
    class Event(dict[str, Any]):
        pass

    class Flood:
        def stream(self, op: str, take: Callable[[Any], None], **arguments: Any) -> Future[Any]:
            self.take = take
            take(Event(port=1, addresses=[HOME]))
            return Future()

    link, none = Flood(), TreeParcel("", b"", None)  # type: ignore[arg-type]
    sender = transfer._Sender(none, 0, link, {}, None, None)  # type: ignore[arg-type]
    assert sender.offer() == {"port": 1, "addresses": [HOME]}
    seen = []
    for _ in range(100):
        link.take(event := Event())
        seen.append(weakref.ref(event))
        del event
    assert [one() for one in seen] == [None] * 100


def test_request_beyond_the_end_of_a_file_frees_its_slot(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "objects"))
    request: Any = {"tree": (name := store.add(b"manifest")), "size": 8}
    key, free = new_certificate(), threading.BoundedSemaphore(1)
    asked = OBJECT.pack(bytes.fromhex(name), (1 << 64) - 1, 1 << 63)
    shared = _Shared(store, request, threading.Event())
    with socket.create_server((HOME, 0)) as door:
        port = door.getsockname()[1]
        caller = threading.Thread(target=lambda: call(port, key, asked), daemon=True)
        caller.start()
        free.acquire()
        _serve(door.accept()[0], _context(key, server=True), shared, free)
        caller.join(10)
    assert free.acquire(blocking=False)
