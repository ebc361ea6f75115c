"""A follower's side of the wire: finding the leader, and staying connected to it."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import TYPE_CHECKING, Callable, cast

from ...protocol.events import Dial, Event, HostSeen
from ...protocol.gang import Order, Report, RestMessage
from ..host import HostPart, plan_hash
from ..journal import note, stamp
from ..loop import Loop
from . import messages
from .gang import FENCE, awaited
from .link import Channel, Peer, WireSession

if TYPE_CHECKING:
    from ...protocol.files import LeaderPlace

_TRY = 2.0
_RETRY = 0.5


class Follower:
    """Connects to the leader, and reconnects after connection losses.

    Args:
        take: Called with each message of the leader.
        fence: Called when the leader has been silent for so long that it may consider this host lost.
        rest: Returns the state of this host's part: the `attempt` and `idle` of a heartbeat.
        lost: Called once when the leader is given up, with kind and message of the cause and the unix time of its last
            sign of life, None if there was none.
    """

    def __init__(
        self,
        host: HostPart,
        loop: Loop,
        say: Callable[[Event], None],
        take: Callable[[Order], None],
        fence: Callable[[], None],
        rest: Callable[[], RestMessage],
        lost: Callable[[str, str, float | None], None],
    ) -> None:
        self._host = host
        self._loop = loop
        self._say = say
        self._take = take
        self._fence = fence
        self._rest = rest
        self._lost = lost
        self._key = bytes.fromhex(host.secrets["key"])
        self._instance = os.urandom(8).hex()
        self._port = 0
        self._addresses: list[str] = []
        self._link = Peer(messages.OF_LEADER)
        self._malformed = False
        self._joined = False
        self._joining = False
        self._reached: list[str] = []
        self._trying: set[str] = set()
        self._problems: dict[str, str] = {}
        self._refusals = 0
        self._broken = False
        self._not_seen = False
        self._fenced = False
        self._stopping = False
        self._waited_for = False
        self._over = False
        self._began = time.monotonic()
        launch = host.launch
        # The same limit as the leader's: if two hosts lose each other, neither knows which one was cut off.
        rejoin = launch["rejoin_timeout"] if launch["restarts"] else 0.0
        self._hope = launch["grace"] + FENCE + rejoin if rejoin else 0.0

    def start(self) -> None:
        """Start to search for the leader if its place is already known."""
        if self._host.spec["leader"]:
            self.lead(self._host.spec["leader"])
        self._loop.every(1.0, self._beat)

    def lead(self, place: LeaderPlace) -> None:
        """Store the leader's `port` and `addresses`; only the first call counts."""
        if self._addresses or self._over:
            return
        # Node 0 announced them, and a viewer forwarded them.
        port, addresses = place.get("port"), place.get("addresses")
        usable = [one for one in addresses if messages.is_address(one)] if isinstance(addresses, list) else []
        if port is None or not messages.is_port(port) or not usable:
            self._end("join", "node 0 reported no valid address and port")
            return
        self._port, self._addresses = port, usable[:64]
        self._search()

    def send(self, message: Report) -> None:
        """Send a message to the leader, now or after a reconnect."""
        self._link.send(message)

    def stop(self) -> float:
        """Note that the run is being stopped; returns the seconds of silence after which the leader is given up.

        Until then it may still run its ranks, and a host that reconnects to this one learns of the stop from it.
        """
        self._stopping = True
        return self._limit if self._joined and not self._over else 0.0

    @property
    def _limit(self) -> float:
        """Seconds of silence after which the leader is given up; its ranks have ended by then."""
        fence = float(self._host.launch["grace"]) + FENCE if self._stopping else 0.0
        return float(self._host.launch["host_timeout"]) + max(self._hope, fence)

    def delivered(self) -> bool:
        """Whether the leader has confirmed everything, or cannot be asked."""
        return self._over or self._link.delivered or not self._link.connected

    def _search(self) -> None:
        """Try every address concurrently to find those that this host can reach."""
        if self._over:
            return
        for address in self._addresses:
            if address not in self._reached and address not in self._trying:
                self._trying.add(address)
                self._dial(address, probe=True)

    def _dial(self, address: str, probe: bool) -> None:
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._fail(address, probe, error.errno or 0)
            return
        sock.setblocking(False)
        code = sock.connect_ex((address, self._port))
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self._fail(address, probe, code)
            return

        def late() -> None:
            self._loop.forget(sock)
            sock.close()
            self._fail(address, probe, errno.ETIMEDOUT)

        def ready() -> None:
            timer.cancel()
            self._loop.forget(sock)
            trouble = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if trouble:
                sock.close()
                self._fail(address, probe, trouble)
            else:
                self._shake(address, sock, probe)

        timer = self._loop.after(_TRY, late)
        self._loop.watch(sock, None, ready)

    def _shake(self, address: str, sock: socket.socket, probe: bool) -> None:
        plan = plan_hash(self._host.spec)
        who = {"run": self._host.run, "node": self._host.node, "spec": plan, "instance": self._instance}

        def opened() -> None:
            channel.send({"k": "hello", "probe": probe, **who})

        def answer(message: messages.Unread) -> None:
            try:
                word = messages.read(message, messages.ANSWER)
            except messages.MalformedMessageError as error:
                closed(str(error))
                return
            timer.cancel()
            if word["k"] == "refused":
                channel.close()
                self._end("join", f"the leader rejected this host: {word['why']}")
            elif probe:
                channel.close()
                self._answered(address)
            else:
                self._join(channel)

        def closed(why: str) -> None:
            timer.cancel()
            channel.close()
            self._fail(address, probe, 0, f"another program answers there, not this run's leader ({why})")

        channel = Channel(self._loop, sock, WireSession(self._key, leads=False), answer, closed, opened)
        timer = self._loop.after(_TRY, lambda: closed("no answer"))

    def _fail(self, address: str, probe: bool, code: int, problem: str = "") -> None:
        if self._over:
            return
        if code == errno.ETIMEDOUT:
            problem = f"no answer in {_TRY:g} s: wrong address, or a firewall"
        problem = problem or os.strerror(code)
        if not self._joined and self._problems.get(address) != problem:
            self._problems[address] = problem
            self._say(Dial(t=stamp(), e="dial", address=address, port=self._port, problem=problem))
        self._trying.discard(address)
        if probe:
            self._loop.after(_RETRY, self._search)
            if self._joined:
                self._tell_reached()
            return
        self._joining = False
        self._refusals = self._refusals + 1 if code == errno.ECONNREFUSED and self._broken else 0
        if self._joined and self._refusals >= 2:
            self._end("host lost", "the leader's supervisor has ended")
        elif not self._link.connected:
            self._loop.after(_RETRY, self._rejoin)

    def _answered(self, address: str) -> None:
        self._trying.discard(address)
        if address not in self._reached:
            self._reached.append(address)
        if self._joined:
            self._tell_reached()
        else:
            self._rejoin()

    def _rejoin(self) -> None:
        if not self._joining and not self._over and self._reached:
            self._joining = True
            # Alternate between them: the interface of one address may be down for good.
            self._reached.append(self._reached.pop(0))
            self._dial(self._reached[-1], probe=False)

    def _join(self, channel: Channel) -> None:
        self._joined, self._joining = True, False
        self._broken, self._refusals = False, 0

        def closed(why: str) -> None:
            self._broken = True
            self._rejoin()

        channel.hand_over(self._hear, closed)
        self._link.attach(channel)
        self._link.beat(**self._rest())
        # The leader forgets what a host has reached that it has lost.
        self._loop.after(0.3 if self._trying else 0, self._tell_reached)

    def _tell_reached(self) -> None:
        self.send({"k": "reached", "addresses": sorted(self._reached), "pending": bool(self._trying)})

    def _hear(self, message: messages.Unread) -> None:
        try:
            new = self._link.take(message)
        except messages.MalformedMessageError as error:
            new = None
            if not self._malformed:
                self._malformed = True
                text = f"ignored an invalid message of the leader: {error}"
                self._say(note(text))
        if self._not_seen:
            self._not_seen = self._fenced = False
            self._say(HostSeen(t=stamp(), e="host", node=0, state="seen", last=round(time.time(), 3)))
        if new is None:
            return
        if new["k"] == "beat":
            self._link.beat(echo=new["t"], **self._rest())
        else:
            self._link.beat(**self._rest())
            self._take(cast("Order", new))

    def _beat(self) -> None:
        now = time.monotonic()
        silent = now - (self._link.heard if self._joined else self._began)
        last = round(time.time() - silent, 3)
        if not self._joined:
            if silent > self._host.launch["join_timeout"]:
                tried = "; ".join(f"{address}: {why}" for address, why in self._problems.items())
                self._end("join", _unreached(self._port, tried))
            return
        self._link.beat(**self._rest())
        if silent >= 5.0:
            if not self._not_seen:
                self._say(HostSeen(t=stamp(), e="host", node=0, state="not seen", last=last))
            self._not_seen = True
            # The kernel retransmits lost data ever more slowly; a new connection recovers sooner.
            self._rejoin()
        if silent >= self._host.launch["host_timeout"] and not self._fenced:
            self._fenced = True
            self._say(HostSeen(t=stamp(), e="host", node=0, state="lost", last=last))
            self._fence()
        if self._stopping and self._not_seen and not self._waited_for:
            self._waited_for = True
            self._say(awaited(self._host.spec["hosts"][0], self._limit - silent))
        if silent >= self._limit:
            self._end("host lost", f"no heartbeat from the leader for {self._limit:g} s")

    def _end(self, kind: str, why: str) -> None:
        if not self._over:
            self._over = True
            last = round(time.time() - (time.monotonic() - self._link.heard), 3) if self._joined else None
            self._lost(kind, why, last)


def _unreached(port: int, tried: str) -> str:
    if not port:
        return "the start was not completed: the starting command ended before it sent node 0's address"
    return f"node 0 was not reached at port {port} ({tried or 'no answer'})"
