"""Sends code trees between hosts: one offers what it has, others gather it (docs/formats.md, "Code trees").

Both ends show the certificate of the upload, whose key only its hosts have: TLS hides the code from the network, and
nobody else gets any. A forwarding host cannot alter anything: what arrives is checked against hashes from the viewer.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Callable, Dict, Iterator, Optional, Sequence, Set, Tuple

from ...protocol import tree
from ...protocol.objects import DamagedError, Store
from ...protocol.requests import OBJECT
from .. import ports
from ..probe.nics import reachable_addresses
from ..problem import Problem
from .syncing import answer, check_room, entries_of, explained, open_writer, store_of

if TYPE_CHECKING:
    from ...protocol import requests
    from ...protocol.files import LeaderPlace

_CONNECT = 2.0
"""Seconds for a connection, and for its handshake."""
_STALL = 30.0
"""Seconds without a byte after which a host is given up."""
_ADDRESSES = 16
_AHEAD = 128
"""Objects that are requested before the first one has arrived."""
_PIECE = 1 << 18


def offer(
    request: requests.OfferRequest,
    cache: str,
    tell: Callable[[LeaderPlace], None],
    over: threading.Event,
) -> None:
    """Serve a tree's objects to callers that have the key until `over` is set. Raises Problem or OSError."""
    store = store_of(request, cache)
    context, given = _context(request["key"], server=True), request["address"]
    alone = given if given in ("127.0.0.1", "::1") else None
    own = [] if alone else reachable_addresses()
    first, last = request["ports"]
    try:
        door = ports.reserve((first, last), only=alone).server
    except Problem:
        door = ports.listen(0, alone)
    shared = _Shared(store, request, over)
    free = threading.BoundedSemaphore(64)  # connections that are served at the same time

    with door:
        door.settimeout(0.2)
        addresses = [*([given] if given else []), *(ip for ip in own if ip != given)]
        tell({"port": door.getsockname()[1], "addresses": addresses})
        while not over.is_set():
            try:
                caller = door.accept()[0]
            except socket.timeout:
                continue
            except OSError:
                over.wait(0.2)  # too many open files, or a caller that has disconnected
                continue
            if free.acquire(blocking=False):
                threading.Thread(target=_serve, args=(caller, context, shared, free), daemon=True).start()
            else:
                caller.close()


def _serve(caller: socket.socket, context: ssl.SSLContext, shared: _Shared, free: threading.BoundedSemaphore) -> None:
    try:
        with contextlib.suppress(OSError, ValueError, OverflowError), caller:
            _prepare(caller, _CONNECT)
            with context.wrap_socket(caller, server_side=True) as wire, wire.makefile("rb") as asked:
                wire.settimeout(2 * _STALL)
                while len(head := asked.read(OBJECT.size)) == OBJECT.size:
                    for data in shared.content(*OBJECT.unpack(head)):
                        wire.sendall(data)
    finally:
        free.release()


class _Shared:
    """What a caller may have: the objects of one tree only."""

    def __init__(self, store: Store, request: requests.OfferRequest, over: threading.Event) -> None:
        self._store, self._request, self._over = store, request, over
        self._names: Set[str] = {request["tree"]}

    def content(self, digest: bytes, size: int, at: int) -> Iterator[bytes]:
        """Yield an object from a byte on; waits for what is still arriving. Raises OSError if it does not arrive."""
        name, moved = digest.hex(), time.monotonic()
        while at < size:
            data = self._store.piece(name, at, min(size - at, _PIECE)) if self._knows(name) else b""
            if data:
                at, moved = at + len(data), time.monotonic()
                yield data
            elif self._over.wait(0.02) or time.monotonic() - moved > _STALL:
                raise OSError("the data does not arrive")

    def _knows(self, name: str) -> bool:
        """Whether a name belongs to the tree; False while its manifest is still arriving. Raises OSError for others."""
        if name not in self._names and len(self._names) == 1:
            self._names = {*self._names, *tree.objects(entries_of(self._store, self._request) or ())}
        if name not in self._names and len(self._names) > 1:
            raise OSError("not of this tree")
        return name in self._names


def gather(
    request: requests.GatherRequest,
    cache: str,
    tell: Callable[[requests.GatherProgress], None],
    over: threading.Event,
) -> requests.TreeAnswer:
    """Fetch a tree's missing objects from one host after the other, until one has provided them all.

    Raises Problem as `sync` does, whose answer says what is still missing.
    """
    store = store_of(request, cache)
    context = _context(request["key"], server=False)
    with explained(store.folder):
        for peer in request["peers"]:
            if over.is_set():
                break
            wire = _dial(peer, context)
            if wire is None:
                continue
            # Other errors, such as a full disk, are found by `sync` as well.
            with wire, contextlib.suppress(OSError, DamagedError, Problem):
                source = _Source(wire, store, tell, over)
                if entries_of(store, request) is None:
                    source.fetch([(request["tree"], request["size"])])
                objects = tree.objects(entries_of(store, request) or ())
                lacks = [(name, size) for name, size in objects.items() if not store.has(name, size)]
                check_room(store.folder, sum(size for _, size in lacks))
                source.fetch(lacks)
                break
    return answer(store, request, grown=True)


class _Source:
    """A connection to a host that offers objects."""

    def __init__(
        self,
        wire: ssl.SSLSocket,
        store: Store,
        tell: Callable[[requests.GatherProgress], None],
        over: threading.Event,
    ) -> None:
        self._wire, self._store, self._tell, self._over = wire, store, tell, over
        self._told = time.monotonic()

    def fetch(self, wanted: Sequence[Tuple[str, int]]) -> None:
        """Fetch objects by name and size. Raises OSError, DamagedError or Problem; what has arrived is kept."""
        begun: Dict[str, int] = {}
        for name, size in self._store.begun():
            begun[name] = max(size, begun.get(name, 0))
        parts = [(name, size, min(size, begun.get(name, 0))) for name, size in wanted]
        total, done, asked = sum(size - offset for _, size, offset in parts), 0, 0
        for number, (name, size, at) in enumerate(parts):
            if number >= asked - _AHEAD // 2:
                more = parts[asked : number + _AHEAD]
                asked += len(more)
                self._wire.sendall(b"".join(OBJECT.pack(bytes.fromhex(one), *rest) for one, *rest in more))
            writer, left = open_writer(self._store, name, size, at), size - at
            try:
                while left:
                    data = self._receive(min(left, _PIECE))
                    left, done = left - len(data), done + len(data)
                    if writer:
                        writer.write(data)
                    self._report({"files": number, "of": len(parts), "done": done, "total": total})
                if writer:
                    writer.done()
            finally:
                if writer:
                    writer.close(remove=False)

    def _receive(self, most: int) -> bytes:
        deadline = time.monotonic() + _STALL
        while time.monotonic() < deadline and not self._over.is_set():
            with contextlib.suppress(socket.timeout):
                if data := self._wire.recv(most):
                    return data
                break
        raise OSError("the host has disconnected")

    def _report(self, progress: requests.GatherProgress) -> None:
        if time.monotonic() - self._told > 0.5:  # seconds between two reports of progress
            self._told = time.monotonic()
            self._tell(progress)


def _dial(peer: LeaderPlace, context: ssl.SSLContext) -> Optional[ssl.SSLSocket]:
    """Connect to the first of a host's addresses that answers with the key; None if none does."""

    def one(address: str) -> Optional[ssl.SSLSocket]:
        try:
            sock = socket.create_connection((address, peer["port"]), _CONNECT)
            _prepare(sock, _CONNECT)
            return context.wrap_socket(sock)
        except (OSError, ValueError):
            return None

    pool = ThreadPoolExecutor(_ADDRESSES)
    tries = [pool.submit(one, address) for address in peer["addresses"][:_ADDRESSES]]
    pool.shutdown(wait=False)
    for found in as_completed(tries):
        if wire := found.result():
            for other in tries:
                if other is not found:
                    other.add_done_callback(_close)
            wire.settimeout(1.0)
            return wire
    return None


def _close(late: Future[Optional[ssl.SSLSocket]]) -> None:
    if wire := late.result():
        wire.close()


def _prepare(sock: socket.socket, seconds: float) -> None:
    """Make the kernel detect a host that has died."""
    sock.settimeout(seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _context(key: str, *, server: bool) -> ssl.SSLContext:
    """TLS in which both ends show the same certificate. Raises OSError for a malformed one."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=key)
    # OpenSSL reads keys only from files; nobody else can open a file without a name.
    with tempfile.TemporaryFile() as file:
        file.write(key.encode())
        file.flush()
        made.load_cert_chain(f"/dev/fd/{file.fileno()}")
    return made
