"""Messages between two supervisors that arrive exactly once and in order, across reconnects."""

from __future__ import annotations

import socket
import time
from typing import Any, Callable, Mapping

from ..loop import Loop
from . import messages
from .wirehmac import FIRST_LIMIT, BrokenWireError, WireSession

_READ = 1 << 16


class Channel:
    """One connection: a non-blocking socket with a session on it.

    Args:
        take: Is called with every message.
        closed: Is called once with the reason, unless `close` was called.
        opened: Is called when messages may be sent.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        session: WireSession,
        take: Callable[[dict[str, Any]], None],
        closed: Callable[[str], None],
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._session = session
        self._take = take
        self._closed = closed
        self._opened = opened
        self._output = session.greeting()
        self.alive = True
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            pass  # some systems raise where the other side has gone; the next read reports that
        self._write()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, or as much of it as the socket takes; the rest is sent when the socket is writable."""
        if self.alive:
            self._output += self._session.pack(message)
            self._write()

    def hand_over(self, take: Callable[[dict[str, Any]], None], closed: Callable[[str], None]) -> None:
        """Replace the callbacks for messages and for the end of the connection."""
        self._take, self._closed = take, closed

    def close(self) -> None:
        """Close it without calling `closed`, and drop all references. May be called twice."""
        if self.alive:
            self.alive = False
            self._loop.forget(self._sock)
            self._sock.close()
            self._output = b""
            # They refer back to this channel: without this, only the cycle collector would free its memory.
            self._take, self._closed, self._opened = _ignore, _ignore, lambda: None

    def _read(self) -> None:
        if not self.alive:
            return
        try:
            # Before authentication, read no more than the first frame: the rest stays in the kernel.
            data = self._sock.recv(_READ if self._session.proven else FIRST_LIMIT)
            if not data:
                raise ConnectionResetError("the other side has closed the connection")
            was_open = self._session.open
            messages = self._session.feed(data)
        except BlockingIOError:
            return
        except (OSError, BrokenWireError) as error:
            self._fail(getattr(error, "strerror", None) or str(error))
            return
        if self._session.open and not was_open:
            self._opened()
        for message in messages:
            if self.alive:
                self._take(message)

    def _write(self) -> None:
        try:
            self._output = self._output[self._sock.send(self._output) :]
        except BlockingIOError:
            pass
        except OSError as error:
            why = error.strerror or str(error)
            self._loop.soon(lambda: self._fail(why))
            return
        if len(self._output) > (1 << 20):
            self._fail("it no longer reads")
        elif self.alive:
            self._loop.watch(self._sock, self._read, self._write if self._output else None)

    def _fail(self, why: str) -> None:
        if self.alive:
            closed = self._closed
            self.close()
            closed(why)


def _ignore(_: Any) -> None:
    pass


class Peer:
    """The messages exchanged with one other supervisor: the last received one, and those not yet confirmed.

    Args:
        kinds: The messages that it may send to us.
    """

    def __init__(self, kinds: messages.Kinds) -> None:
        self._kinds = kinds
        self.channel: Channel | None = None
        self.heard = time.monotonic()
        self._unheard: list[dict[str, Any]] = []
        self._sent = 0
        self._received = 0

    @property
    def delivered(self) -> bool:
        """Whether the other side has confirmed everything."""
        return not self._unheard

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not known to be dead."""
        return self.channel is not None and self.channel.alive

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message now or as soon as there is a connection again."""
        self._sent += 1
        self._unheard.append({**message, "id": self._sent})
        if self.channel:
            self.channel.send(self._unheard[-1])

    def leave_out(self, attempt: int) -> None:
        """Drop unconfirmed messages of attempts older than `attempt`."""
        self._unheard = [
            {"k": "over", "id": old["id"]} if old.get("attempt", attempt) < attempt else old for old in self._unheard
        ]

    def attach(self, channel: Channel) -> None:
        """Continue on a new connection: unconfirmed messages are sent again."""
        if self.channel:
            self.channel.close()
        self.channel = channel
        self.heard = time.monotonic()
        for message in self._unheard:
            channel.send(message)

    def beat(self, **fields: Any) -> None:
        """Send a heartbeat with the number of the last message received."""
        if self.channel:
            self.channel.send({"k": "beat", "t": time.time(), "ack": self._received, **fields})

    def take(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Note an incoming message. Returns it if it is a beat or new, None for a repeated one.

        Raises MalformedMessageError for an invalid message, which counts as received.
        """
        self.heard = time.monotonic()
        if message.get("k") == "beat":
            beat = messages.read(message, self._kinds)
            self._unheard = [old for old in self._unheard if old["id"] > beat["ack"]]
            return beat
        if message.get("id") != self._received + 1:
            return None
        self._received += 1
        return messages.read(message, self._kinds)
