"""The leader's side of the wire: the port that followers connect to, and the state of each follower."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Any, Callable, cast

from ...protocol.events import Clock, Event, HostSeen
from ...protocol.gang import Order, Report, attempt_of
from ..host import HostPart, plan_hash
from ..journal import note, stamp
from ..loop import Loop
from . import messages
from .gang import FENCE, Gang, awaited
from .link import Channel, Peer, WireSession

_NOT_SEEN = 5.0
_COMES_BACK = 1.5
"""Seconds that a host with a broken connection has to connect again; a live supervisor does so immediately."""
_NO_NEWS = {os.strerror(code) for code in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)}
"""Errors of a connection that do not show whether the supervisor at the other end lives."""


class _Follower:
    def __init__(self) -> None:
        self.link = Peer(messages.OF_FOLLOWER)
        self.instance = ""
        self.malformed = False
        self.broken: float | None = None
        self.not_seen = False
        self.waited_for = False
        self.lost = False
        self.trips: list[tuple[float, float]] = []
        self.reported: tuple[float, float] | None = None


class Leader:
    """Accepts followers at a listening socket and passes their messages to the gang.

    An unauthenticated connection is dropped after 5 s. There are at most 512 of them, with a buffer of 1 KiB each, and
    an error in their data closes that connection only.
    """

    def __init__(
        self,
        host: HostPart,
        loop: Loop,
        server: socket.socket,
        gang: Gang,
        say: Callable[[Event], None],
    ) -> None:
        self._host = host
        self._loop = loop
        self._server = server
        self._gang = gang
        self._say = say
        self._key = bytes.fromhex(host.secrets["key"])
        self._strangers: dict[Channel, float] = {}
        """Unauthenticated connections, oldest first → deadline (monotonic seconds)."""
        self._followers = {node: _Follower() for node in range(1, len(host.spec["hosts"]))}
        # Accepted sockets inherit it.
        # bytes of the kernel's receive buffer for one connection
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        loop.watch(server, self._accept)
        loop.every(1.0, self._beat)

    def send(self, node: int, message: Order) -> None:
        """Send a message to a follower, now or after it reconnects; queued messages of older attempts are dropped."""
        link = self._followers[node].link
        link.leave_out(attempt_of(message, 0))
        link.send(message)

    def delivered(self) -> bool:
        """Whether every connected follower has confirmed everything."""
        return all(one.link.delivered for one in self._followers.values() if one.link.connected)

    def _accept(self) -> None:
        try:
            sock, _ = self._server.accept()
        except OSError:
            return
        if len(self._strangers) >= 512:
            self._drop(next(iter(self._strangers)))

        def take(message: messages.Unread) -> None:
            self._greet(channel, message)

        def closed(why: str) -> None:
            self._drop(channel)

        channel = Channel(self._loop, sock, WireSession(self._key, leads=True), take, closed)
        self._strangers[channel] = time.monotonic() + 5.0

    def _drop(self, stranger: Channel) -> None:
        self._strangers.pop(stranger, None)
        stranger.close()

    def _greet(self, channel: Channel, message: messages.Unread) -> None:
        """Handle the first message of a connection; its valid MAC proves that the sender has the run's key."""
        if channel not in self._strangers:
            return
        try:
            hello = messages.read(message, messages.HELLO)
        except messages.MalformedMessageError:
            self._drop(channel)
            return
        follower = self._followers.get(hello["node"])
        if follower is None:
            self._drop(channel)
            return
        why = self._objection(follower, hello)
        if why:
            channel.send({"k": "refused", "why": why})
        elif hello["probe"]:
            channel.send({"k": "welcome"})
        else:
            del self._strangers[channel]
            self._attach(hello["node"], follower, channel, hello["instance"])

    def _objection(self, follower: _Follower, hello: dict[str, Any]) -> str | None:
        if hello["run"] != self._host.run or hello["spec"] != plan_hash(self._host.spec):
            return "it belongs to another run, or another version of this run's plan"
        if follower.instance == hello["instance"]:
            return None
        if not self._gang.open:
            return "the run started without it, or has ended"
        silent = time.monotonic() - follower.link.heard
        if follower.instance and follower.link.connected and silent < _NOT_SEEN:
            return "another supervisor of this host has joined"
        return None

    def _attach(self, node: int, follower: _Follower, channel: Channel, instance: str) -> None:
        if follower.instance != instance:
            follower.link, follower.instance = Peer(messages.OF_FOLLOWER), instance
        follower.broken = None

        def take(message: messages.Unread) -> None:
            self._take(node, follower, message)

        def closed(why: str) -> None:
            if why in _NO_NEWS:
                return
            follower.broken = time.monotonic()
            # React to a dead process as soon as that is certain, not at the next heartbeat.
            self._loop.after(_COMES_BACK, self._look_at_all)

        channel.hand_over(take, closed)
        channel.send({"k": "welcome"})
        follower.link.attach(channel)
        follower.link.beat()
        self._gang.join(node)

    def _take(self, node: int, follower: _Follower, message: messages.Unread) -> None:
        try:
            new = follower.link.take(message)
        except messages.MalformedMessageError as error:
            self._note_malformed(node, follower, str(error))
            new = None
        if follower.not_seen or follower.lost:
            follower.not_seen = follower.lost = False
            self._say(HostSeen(t=stamp(), e="host", node=node, state="seen", last=round(time.time(), 3)))
            self._gang.found(node)
        if new is None:
            return
        if new["k"] == "beat":
            self._measure(node, follower, new)
            if follower.link.delivered:
                self._gang.rests(node, new["attempt"], new["idle"])
            return
        follower.link.beat()
        self._gang.receive(node, cast("Report", new))

    def _note_malformed(self, node: int, follower: _Follower, why: str) -> None:
        if not follower.malformed:
            follower.malformed = True
            who = f"{self._host.spec['hosts'][node]} (node {node})"
            text = f"ignored an invalid message of {who}: {why}"
            self._say(note(text))

    def _measure(self, node: int, follower: _Follower, beat: dict[str, Any]) -> None:
        """Clock offset at the middle of a round trip (Cristian 1989); the quickest of the last 30 counts.

        It is accurate to half a round trip only. 0 if the clocks may agree: failures on two hosts in sync must not
        change places because the first heartbeat was slow.
        """
        echo = beat.get("echo")
        if echo is None:
            return
        now = time.time()
        follower.trips = [*follower.trips[-29:], (now - echo, beat["t"] - (now + echo) / 2)]
        trip, offset = min(follower.trips)
        offset = 0.0 if abs(offset) <= trip / 2 else offset
        reported = follower.reported
        moved = reported and abs(offset - reported[1]) > 0.01 and now - reported[0] > 10.0
        if reported is None or moved:
            follower.reported = (now, offset)
            self._gang.clock(node, offset)
            self._say(Clock(t=stamp(), e="clock", node=node, offset=round(offset, 6)))

    def _beat(self) -> None:
        for follower in self._followers.values():
            follower.link.beat()
        now = time.monotonic()
        for stranger in [one for one, limit in self._strangers.items() if now >= limit]:
            self._drop(stranger)
        self._look_at_all()

    def _look_at_all(self) -> None:
        now = time.monotonic()
        for node, follower in self._followers.items():
            if follower.instance and not self._gang.over:
                self._look_after(node, follower, now)

    def _look_after(self, node: int, follower: _Follower, now: float) -> None:
        silent = now - follower.link.heard
        last = round(time.time() - silent, 3)
        if silent >= _NOT_SEEN and not follower.not_seen:
            follower.not_seen = True
            self._say(HostSeen(t=stamp(), e="host", node=node, state="not seen", last=last))
        gone = follower.broken is not None and now - follower.broken >= _COMES_BACK
        if (gone or silent >= self._host.launch["host_timeout"]) and not follower.lost:
            follower.lost = True
            self._say(HostSeen(t=stamp(), e="host", node=node, state="lost", last=last))
            self._gang.lose(node, last, gone)
        if follower.not_seen and not follower.waited_for and self._gang.unstopped(node):
            follower.waited_for = True
            left = self._host.launch["host_timeout"] + self._host.launch["grace"] + FENCE - silent
            self._say(awaited(self._host.spec["hosts"][node], left))
