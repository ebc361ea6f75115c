"""Sends a tree to hosts: to each store only what it lacks, compressed, and resumed after an interruption.

New bytes leave this machine once: it sends them to the first host, and the other hosts get them from one another. A
host that cannot reach another one gets them from this machine.
"""

from __future__ import annotations

import datetime
import math
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from disttui.runner.errors import DisttuiError, HostError, InputError, LinkLostError
from disttui.runner.formatting import count, duration
from disttui.runner.hosts.answers import read_place
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import HostsError, Tell, side_by_side
from disttui.runner.protocol import tree
from disttui.runner.protocol.files import LeaderPlace
from disttui.runner.protocol.limits import CHUNK
from disttui.runner.protocol.objects import DamagedError, Store
from disttui.runner.protocol.requests import OBJECT, TreeAnswer
from disttui.runner.untrusted.records import whole


def new_certificate() -> str:
    """Return a self-signed certificate with its private key, as PEM. It is used once and never stored."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "disttui")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The hosts' clocks may be wrong.
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc))
        .not_valid_after(datetime.datetime(9999, 1, 1, tzinfo=datetime.timezone.utc))
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (private + made.public_bytes(Encoding.PEM)).decode("ascii")


PATIENCE = 600.0
"""Seconds for a host to check its store, or to write a run's copy."""
_TRIES = 5
"""Attempts for a host whose link breaks."""
_ROUNDS = 4
"""Number of times that a host may report that it lacks something: the manifest, objects, and damaged objects."""
_WORTH = 1 << 18
"""Bytes below which sending directly is faster than forwarding from another host."""
_OFFER = 10.0
"""Seconds for a host to report where it listens."""
_COMPLETE = 4
"""Complete hosts that a host tries, one after the other, if its first peers could not serve it."""
_PIECE = 4 * CHUNK
_FRAME = CHUNK - 256
"""Bytes of a piece of the upload, so that it and its head fill two SSH packets, not two and a little of a third."""
_STORED = 0xFFFF
"""Most bytes of a block of a deflate stream that is not compressed."""
_SAMPLE = 4096
"""Bytes at the beginning of a piece that are compressed to test whether compression helps."""
_PACE = 0.5
"""Seconds between two progress reports."""


@dataclass(frozen=True)
class TreeParcel:
    """A tree whose objects are in a store."""

    tree: str
    manifest: bytes
    store: Store
    here: bool = True
    """Whether this machine's store has all objects; otherwise only the manifest, and a host has the others."""
    new: tuple[tuple[str, int], ...] = ()
    """Names and sizes of objects that hosts most likely lack: a single host is sent the manifest without asking, and
    these objects as well if they are small."""

    @cached_property
    def beginning(self) -> list[_Sent]:
        """What to send to a host that does not know the tree: the manifest, and `likely`."""
        return [_Sent(name, size, 0) for name, size in ((self.tree, len(self.manifest)), *self.likely)]

    @cached_property
    def likely(self) -> tuple[tuple[str, int], ...]:
        """`new` if it is small, otherwise (); set after an edit, when no host knows the tree yet."""
        return self.new if len(self.manifest) + sum(size for _, size in self.new) < _WORTH else ()

    @cached_property
    def objects(self) -> list[tuple[str, int]]:
        """Names and sizes of the tree's objects, in the manifest's order."""
        return list(tree.objects(tree.decode(self.manifest)).items())


class _Packer:
    """Makes a deflate stream (RFC 1951) that compresses only what shrinks, as that is slower than a fast network."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
        self._unflushed = False

    def pack(self, data: bytes) -> bytes:
        """Add data; return the bytes of the stream that are ready."""
        sample = data[:_SAMPLE]
        if len(sample) < _SAMPLE or len(zlib.compress(sample, 1)) < 0.9 * _SAMPLE:
            self._unflushed = True
            return self._packer.compress(data)
        # After a full flush, later blocks refer to nothing before it, so blocks may be inserted here.
        blocks = [self._packer.flush(zlib.Z_FULL_FLUSH)] if self._unflushed else []
        self._unflushed = False
        for at in range(0, len(data), _STORED):
            block = data[at : at + _STORED]
            blocks += struct.pack("<BHH", 0, len(block), _STORED - len(block)), block
        return b"".join(blocks)

    def end(self) -> bytes:
        """Return the remaining bytes of the stream."""
        return self._packer.flush()


def _frames(ready: bytearray, least: int) -> Iterator[bytes]:
    """Remove and yield frames of at most `_FRAME` bytes from the beginning, while at least `least` bytes remain."""
    while len(ready) >= least:
        with memoryview(ready) as view:
            some = [bytes(view[at : at + _FRAME]) for at in range(0, len(ready) - least + 1, _FRAME)]
        del ready[: sum(map(len, some))]
        yield from some


class _Sent(NamedTuple):
    """An object to be sent from `offset` on."""

    name: str
    size: int
    offset: int


def send(  # noqa: PLR0913
    parcel: TreeParcel,
    links: Sequence[Link],
    *,
    run: str,
    run_dir: str,
    to: str,
    reopen: Callable[[int], Link],
    tell: Tell,
    addresses: Sequence[str | None] = (),
    ports: tuple[int, int] = (0, 0),
    data: Literal["file", "folder"] | None = None,
) -> None:
    """Send a tree to all hosts of a run, and make the run's copy there. Hosts with a common store get objects once.

    Args:
        to: The path of the copy on the hosts.
        reopen: Opens a new link to the host with this node rank when one breaks. Raises DisttuiError.
        tell: Called with step `sending` and the progress of a host.
        addresses: The address at which other hosts reach each host; None to try all of its addresses.
        ports: First and last port at which hosts may listen for one another.
        data: Whether the copy is data, which outlives the run, and of which kind.

    Raises:
        DisttuiError: A host could not get the tree. Objects that have arrived are kept for the next attempt.
    """
    request = {"run": run, "run_dir": run_dir, "tree": parcel.tree, "size": len(parcel.manifest), "to": to}
    request.update({"data": data} if data else {})
    alone = len(links) == 1  # several hosts may share a store
    senders = [_Sender(parcel, node, link, request, reopen, tell, alone=alone) for node, link in enumerate(links)]
    try:
        answers = side_by_side(_Sender.ask, senders)
        errors = [answer for answer in answers if isinstance(answer, DisttuiError)]
        groups: dict[str, list[_Sender]] = {}
        for sender, answer in zip(senders, answers, strict=True):
            if not isinstance(answer, DisttuiError):
                group = groups.setdefault(answer["store"], [])
                if group:
                    sender.answer = None  # outdated once the first host of the group has the tree
                group.append(sender)
        if len(groups) > 1 and not errors:
            errors = _introduce(sorted((group[0] for group in groups.values()), key=_Sender.rank), parcel)
        # The host that lacks least comes first, since it soon has everything to serve others.
        ordered = sorted(groups.values(), key=lambda group: group[0].rank())
        lacking = [group for group in ordered if not group[0].placed]
        if lacking and not errors:
            forwards = len(ordered) > 1 and (lacking[-1][0].lacking >= _WORTH or not parcel.here)
            offered = {"key": new_certificate(), "ports": list(ports)} if forwards else {}
            for sender, address in zip(senders, addresses or [None] * len(senders), strict=True):
                sender.offered = {**offered, "address": address}
            has_it = ordered[: len(ordered) - len(lacking)][:1] if forwards else []
            errors = _Upload([*has_it, *lacking], forwards=forwards).run()
    finally:
        for sender in senders:
            sender.close()
    if errors:
        raise errors[0] if len(errors) == 1 else HostsError(errors)


def _introduce(leading: Sequence[_Sender], parcel: TreeParcel) -> list[DisttuiError]:
    """If no host has the tree, send its manifest to find out how much they lack; return the errors."""
    if leading[0].placed:
        return []
    errors = [leading[0].introduce()]
    if leading[0].lacking + len(parcel.manifest) < _WORTH and not errors[0]:
        errors += side_by_side(_Sender.introduce, leading[1:])  # too little to forward: this machine sends it to each
    return [error for error in errors if error]


class _Upload:
    """Sends a tree to groups of hosts; the hosts of a group share a store.

    The groups form a binary heap: the first gets the tree from this machine, and each other one from its parent while
    that still receives it, or from higher ancestors. A group that fails to do so waits until the first is complete,
    tries complete hosts, and then gets it from this machine.
    """

    def __init__(self, groups: Sequence[Sequence[_Sender]], *, forwards: bool) -> None:
        self._groups, self._forwards = groups, forwards
        self._first = threading.Event()
        self._complete: list[_Sender] = []

    def run(self) -> list[DisttuiError]:
        """Send the tree to all groups; return the errors."""
        leading = [group[0] for group in self._groups]
        try:
            if self._forwards:
                side_by_side(_Sender.offer, leading[: len(leading) // 2])
            with ThreadPoolExecutor(max_workers=len(leading), thread_name_prefix="send") as pool:
                return [error for found in pool.map(self._serve, range(len(leading))) for error in found]
        finally:
            for sender in leading:
                sender.withdraw()

    def _serve(self, number: int) -> list[DisttuiError]:
        try:
            return self._give(number)
        finally:
            if not number:
                self._first.set()

    def _give(self, number: int) -> list[DisttuiError]:
        group = self._groups[number]
        if number and self._forwards:
            above, peers = number, []
            while above:
                above = (above - 1) // 2
                peers.append(self._groups[above][0])
            if not group[0].gather(peers):
                self._first.wait()
                if not self._complete:
                    return []  # the first group failed, and reports why
                group[0].gather(self._complete[:_COMPLETE])
        errors = []
        for sender in group:  # the first fills the common store, which the others only copy from
            try:
                sender.send()
            except DisttuiError as error:
                errors.append(error)
        if not errors:
            self._complete.append(group[0])
        elif not number:
            for other in self._groups:
                other[0].withdraw()
        return errors


def _keep_first(heard: Future[Any], item: object) -> None:
    with suppress(InvalidStateError):  # a host may send any number of items
        heard.set_result(item)


class _Sender:
    """Sends to one host."""

    def __init__(
        self,
        parcel: TreeParcel,
        node: int,
        link: Link,
        request: dict[str, object],
        reopen: Callable[[int], Link],
        tell: Tell,
        *,
        alone: bool = False,
    ) -> None:
        self._parcel, self._node, self._link, self._first = parcel, node, link, link
        self._alone = alone
        self._request = request
        self._reopen = reopen
        self._tell = tell
        self._told = self._heard = 0.0
        self._offering, self._gathering = threading.Lock(), Future[Any]()
        self._served: Future[Any] | None = None
        self._place: LeaderPlace | None = None
        self.offered: dict[str, object] = {}
        """Arguments of `offer`, with which the host serves others."""
        self.answer: TreeAnswer | None = None
        """The host's last answer, or None if it is outdated."""
        self.lacking = 0.0
        """Bytes that the host lacks; infinite if it does not know the tree."""

    def ask(self) -> TreeAnswer | DisttuiError:
        """Return what the host lacks, or the error."""
        try:
            answer = self._lasting(self._ask)
        except DisttuiError as error:
            return error
        self._note(answer)
        return answer

    def introduce(self) -> DisttuiError | None:
        """Send the manifest to a host without it, so that it can report what it lacks; return an error or None."""
        if self.answer and not self.placed and not self.answer["manifest"]:
            pieces = self._lacking(self.answer)
            try:
                self._note(self._lasting(lambda: self._put(pieces)))
            except DisttuiError as error:
                return error
        return None

    @property
    def placed(self) -> bool:
        """Whether the host has the complete copy according to its last answer."""
        return bool(self.answer and self.answer["placed"])

    def rank(self) -> tuple[bool, float]:
        """Sort key of the order in which hosts get the tree: complete ones first, then by what they lack."""
        return not self.placed, self.lacking

    def _note(self, answer: TreeAnswer) -> None:
        self.answer = answer
        known = answer["placed"] or answer["manifest"]
        self.lacking = sum(one.size - one.offset for one in self._lacking(answer)) if known else math.inf

    def offer(self) -> LeaderPlace | None:
        """Have the host serve others; return its port and addresses, or None if it cannot."""
        with self._offering:
            if self._served is None or self._served.done():
                heard = Future[Any]()
                take = partial(_keep_first, heard)
                self._served = self._link.stream("offer", take, **self._request, **self.offered)
                self._served.add_done_callback(take)
                self._place = None
                with suppress(FutureTimeout, ValueError):
                    found = heard.result(_OFFER)
                    self._place = read_place(found) if isinstance(found, dict) else None
            return self._place

    def gather(self, peers: Sequence[_Sender]) -> bool:
        """Have the host get what it lacks from others; return whether it then has everything."""
        self.answer = None
        places = [place for peer in peers if (place := peer.offer())]
        with suppress(DisttuiError):  # an error of the host itself occurs again when this machine sends
            self.answer = self._lasting(lambda: self._gather(places)) if places else None
        return self.placed

    def withdraw(self) -> None:
        """Stop serving others and getting anything from them."""
        for future in (self._served, self._gathering):
            if future is not None:
                self._link.cancel(future)

    def send(self) -> None:
        """Send what the host lacks. Raises DisttuiError."""
        self._lasting(self._send)

    def close(self) -> None:
        """Close a link that replaced the first one."""
        if self._link is not self._first:
            self._link.close()

    def _lasting(self, work: Callable[[], TreeAnswer]) -> TreeAnswer:
        """Do `work`, and repeat it over a new link after an interruption; the host keeps what has arrived."""
        for _ in range(_TRIES - 1):
            with suppress(LinkLostError):
                return work()
            self._tell(self._node, "sending", "the link broke; reconnecting")
            self.close()
            self._link = self._reopen(self._node)
        return work()

    def _ask(self) -> TreeAnswer:
        if self._alone and self._parcel.new:
            return self._put(self._parcel.beginning)  # asking is needless: the host lacks this
        return self._heard_of(self._link.submit("sync", **self._request))

    def _heard_of(self, future: Future[TreeAnswer]) -> TreeAnswer:
        """Wait for the host's answer, which it sends after checking its store or making the copy. Raises HostError."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(FutureTimeout):
                return future.result(_PACE)
            self._tell(self._node, "sending", "waiting for the host to write")  # an interrupt takes effect here
        what = f"no answer in {PATIENCE:.0f} s"
        raise HostError(self._link.host, what, "Check what keeps the host or its disk busy.")

    def _gather(self, places: Sequence[LeaderPlace]) -> TreeAnswer:
        begun, self._heard = 0.0, time.monotonic()

        def take(event: Any) -> None:
            nonlocal begun
            self._heard = time.monotonic()
            begun = begun or self._heard  # excludes the time in which the other host had nothing to send
            files, of, done, total = (whole(event.get(name)) or 0 for name in ("files", "of", "done", "total"))
            self._progress(files, of, done, total, done, begun)

        self._gathering = self._link.stream(
            "gather", take, **self._request, key=self.offered["key"], peers=list(places)
        )
        while True:
            try:
                found: TreeAnswer = self._gathering.result(1.0)
                return found
            except FutureTimeout:
                if time.monotonic() - self._heard > PATIENCE:
                    raise HostError(self._link.host, f"no answer in {PATIENCE:.0f} s") from None

    def _send(self) -> TreeAnswer:
        answer, self.answer = self.answer or self._ask(), None
        for _ in range(_ROUNDS):
            if answer["placed"]:
                return answer
            pieces = self._lacking(answer)
            if answer["manifest"] and not self._parcel.here:
                cure = "Open launch.ports between the hosts, or put the data on this machine."
                raise HostError(self._link.host, "cannot reach the host that has the data", cure)
            answer = self._put(pieces)
        raise HostError(self._link.host, "the host loses files sent to it", "Check whether its disk is failing.")

    def _put(self, pieces: Sequence[_Sent]) -> TreeAnswer:
        future = self._link.upload("put", self._packed(pieces), **self._request)
        try:
            return self._heard_of(future)
        except LinkLostError:
            raise
        except HostError:
            self._check(pieces)
            raise

    def _lacking(self, answer: TreeAnswer) -> list[_Sent]:
        if answer["placed"]:
            return []
        if not answer["manifest"]:
            return self._parcel.beginning
        objects, found = self._parcel.objects, []
        for first, many in answer["missing"]:
            for index, (name, size) in enumerate(objects[first : first + many], first):
                found.append(_Sent(name, size, min(size, answer["begun"].get(str(index), 0))))
        return found

    def _packed(self, pieces: Sequence[_Sent]) -> Iterator[bytes]:
        """Yield the compressed stream of objects in frames. Raises InputError if the store lacks one."""
        packer = _Packer()
        total = sum(one.size - one.offset for one in pieces)
        begun, done, sent, ready = time.monotonic(), 0, 0, bytearray()
        for number, one in enumerate(pieces):
            ready += packer.pack(OBJECT.pack(bytes.fromhex(one.name), one.size, one.offset))
            try:
                for data in self._content(one):
                    done += len(data)
                    ready += packer.pack(data)
                    for frame in _frames(ready, _FRAME):
                        sent += _FRAME
                        yield frame
                        if len(pieces) > 1 or one.name != self._parcel.tree:
                            self._progress(number, len(pieces), done, total, sent, begun)
            except (OSError, DamagedError):
                raise self._gone(one) from None
        ready += packer.end()
        yield from _frames(ready, 1)

    def _content(self, one: _Sent) -> Iterator[bytes]:
        """Yield the data of an object to send; the receiver checks it. Raises OSError and DamagedError."""
        at = one.offset
        with self._parcel.store.open(one.name) as file:
            file.seek(at)
            while at < one.size:
                data = file.read(min(one.size - at, _PIECE))
                if not data:
                    raise DamagedError(one.name)
                yield data
                at += len(data)

    def _check(self, pieces: Sequence[_Sent]) -> None:
        """Remove sent objects that are damaged here, to be read again by the next attempt. Raises InputError if any."""
        for one in pieces:
            try:
                self._parcel.store.copy(one.name, len)
            except (OSError, DamagedError):
                raise self._gone(one) from None

    def _gone(self, one: _Sent) -> InputError:
        what = f"the object {one.name[:12]} is gone or damaged in {self._parcel.store.folder}"
        return InputError(what, "Start the run again.")

    def _progress(self, files: int, of: int, done: int, total: int, sent: int, begun: float) -> None:
        now = time.monotonic()
        if now - self._told < _PACE or now - begun < _PACE:
            return
        self._told = now
        left = (total - done) * (now - begun) / done if done else 0.0
        words = f"{files:,} of {of:,} files, {count(done)}B of {count(total)}B, {count(sent / (now - begun))}B/s"
        self._tell(self._node, "sending", f"{words}, {duration(left)} left")
