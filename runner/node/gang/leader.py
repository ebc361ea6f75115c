"""The leader's side of the wire: the port that followers join at, and what is known of each."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Any, Callable

from ..host import Host, plan_hash
from ..journal import event
from ..loop import Loop
from .gang import Gang
from .link import Channel, Link
from .wirehmac import Session

_HANDSHAKE = 5.0
_STRANGERS = 512
_NOT_SEEN = 5.0
_COMES_BACK = 1.5
"""Seconds that a host with a broken connection has to connect again; who is alive does so at once."""
_NO_NEWS = {os.strerror(code) for code in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)}
"""Ends of a connection that say nothing of the supervisor at the other end."""
_CLOCK_CHANGE = 0.01
_CLOCK_PAUSE = 10.0


class _Follower:
    def __init__(self) -> None:
        self.link = Link()
        self.instance = ""
        self.broken: float | None = None
        self.not_seen = False
        self.lost = False
        self.trips: list[tuple[float, float]] = []
        self.told: tuple[float, float] | None = None


class Leader:
    """Accepts followers at a listening socket and hands what they say to the gang.

    A connection that has not proved itself within 5 s is dropped; of those there are 512 at most.
    """

    def __init__(
        self,
        host: Host,
        loop: Loop,
        server: socket.socket,
        gang: Gang,
        say: Callable[[dict[str, Any]], None],
    ) -> None:
        self._host = host
        self._loop = loop
        self._server = server
        self._gang = gang
        self._say = say
        self._key = bytes.fromhex(host.secrets["key"])
        self._strangers: list[Channel] = []
        self._followers = {node: _Follower() for node in range(1, len(host.spec["hosts"]))}
        loop.watch(server, self._accept)
        loop.every(1.0, self._beat)

    def send(self, node: int, message: dict[str, Any]) -> None:
        """Send a message to a follower, now or when it is back."""
        self._followers[node].link.send(message)

    def delivered(self) -> bool:
        """Whether every follower that is connected has confirmed everything."""
        return all(one.link.delivered for one in self._followers.values() if one.link.connected)

    def _accept(self) -> None:
        try:
            sock, _ = self._server.accept()
        except OSError:
            return
        if len(self._strangers) >= _STRANGERS:
            self._strangers.pop(0).close()

        def take(message: dict[str, Any]) -> None:
            self._greet(channel, message)

        channel = Channel(self._loop, sock, Session(self._key, leads=True), take, lambda why: drop())

        def drop() -> None:
            if channel in self._strangers:
                self._strangers.remove(channel)
                channel.close()

        self._strangers.append(channel)
        self._loop.after(_HANDSHAKE, drop)

    def _greet(self, channel: Channel, message: dict[str, Any]) -> None:
        """Take the first message of a connection; that it could be read proves that it has the run's key."""
        if channel not in self._strangers:
            return
        node = message.get("node")
        follower = self._followers.get(node) if isinstance(node, int) else None
        if message.get("k") != "hello" or follower is None or not isinstance(node, int):
            self._strangers.remove(channel)
            channel.close()
            return
        why = self._objection(follower, message)
        if why:
            channel.send({"k": "refused", "why": why})
        elif message.get("probe"):
            channel.send({"k": "welcome"})
        else:
            self._strangers.remove(channel)
            self._attach(node, follower, channel, message["instance"])

    def _objection(self, follower: _Follower, message: dict[str, Any]) -> str | None:
        if message.get("run") != self._host.run or message.get("spec") != plan_hash(self._host.spec):
            return "it belongs to another run, or to another version of this run's plan"
        if follower.instance == message.get("instance"):
            return None
        if not self._gang.open:
            return "the run has begun without it, or has ended"
        silent = time.monotonic() - follower.link.heard
        if follower.instance and follower.link.connected and silent < _NOT_SEEN:
            return "another supervisor has joined as this host and is alive"
        return None

    def _attach(self, node: int, follower: _Follower, channel: Channel, instance: str) -> None:
        if follower.instance != instance:
            follower.link, follower.instance = Link(), instance
        follower.broken = None

        def take(message: dict[str, Any]) -> None:
            self._take(node, follower, message)

        def closed(why: str) -> None:
            if why in _NO_NEWS:
                return
            follower.broken = time.monotonic()
            # A dead process is acted on as soon as it is certain, not with the next beat.
            self._loop.after(_COMES_BACK, self._look_at_all)

        channel.hand_over(take, closed)
        channel.send({"k": "welcome"})
        follower.link.attach(channel)
        follower.link.beat()
        self._gang.join(node)

    def _take(self, node: int, follower: _Follower, message: dict[str, Any]) -> None:
        new = follower.link.take(message)
        if follower.not_seen or follower.lost:
            follower.not_seen = follower.lost = False
            self._say(event("host", node=node, state="seen", last=round(time.time(), 3)))
            self._gang.found(node)
        if new is None:
            return
        if new["k"] == "beat":
            self._measure(node, follower, new)
            return
        follower.link.beat()
        self._gang.receive(node, new)

    def _measure(self, node: int, follower: _Follower, beat: dict[str, Any]) -> None:
        """Clock offset by the middle of a round trip (Cristian 1989), the quickest of the last 30 counts."""
        echo = beat.get("echo")
        if echo is None:
            return
        now = time.time()
        follower.trips = [*follower.trips[-29:], (now - echo, beat["t"] - (now + echo) / 2)]
        offset = min(follower.trips)[1]
        told = follower.told
        moved = told and abs(offset - told[1]) > _CLOCK_CHANGE and now - told[0] > _CLOCK_PAUSE
        if told is None or moved:
            follower.told = (now, offset)
            self._gang.clock(node, offset)
            self._say(event("clock", node=node, offset=round(offset, 6)))

    def _beat(self) -> None:
        for follower in self._followers.values():
            follower.link.beat()
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
            self._say(event("host", node=node, state="not seen", last=last))
        gone = follower.broken is not None and now - follower.broken >= _COMES_BACK
        if (gone or silent >= self._host.launch["host_timeout"]) and not follower.lost:
            follower.lost = True
            self._say(event("host", node=node, state="lost", last=last))
            self._gang.lose(node, last, gone)
