"""Messages between two supervisors that arrive exactly once and in order, across reconnects.

Frames are authenticated with the run's key and bound to their session and their position in it. The MAC is checked over
raw bytes before they are parsed.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
import time
from typing import Any, Callable

from ..loop import Loop
from . import messages

LIMIT = 64 * 1024
"""Longest frame in bytes, without its length field."""
FIRST_LIMIT = 1024
"""Longest first frame in bytes, which is read before the other side is authenticated."""
_PROOF = 32
_NONCE = 32
_DIGITS = frozenset(b"0123456789abcdef")


class BrokenWireError(Exception):
    """The other side does not have the key, or speaks a different protocol."""


class WireSession:
    """One side of one connection, without the socket: converts bytes to messages and back.

    Args:
        key: The run's secret.
        leads: Whether this is the leader's side.
    """

    def __init__(self, key: bytes, leads: bool) -> None:
        self._key = key
        self._leads = leads
        self._nonce = os.urandom(_NONCE // 2).hex().encode()
        self._session = b""
        self._sent = 0
        self._received = 0
        self._buffer = b""

    @property
    def open(self) -> bool:
        """Whether the other side's nonce has arrived, so that `pack` may be used."""
        return bool(self._session)

    @property
    def proven(self) -> bool:
        """Whether the other side has proven that it has the key."""
        return self._received > 0

    def greeting(self) -> bytes:
        """The first bytes of each side, the only ones without a MAC."""
        return self._nonce

    def pack(self, message: messages.Unread) -> bytes:
        """Return the frame of a message. Raises BrokenWireError if it is too long."""
        payload = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        if _PROOF + len(payload) > (LIMIT if self._sent else FIRST_LIMIT):
            raise BrokenWireError("a message is too long")
        proof = self._proof(self._leads, self._sent, payload)
        self._sent += 1
        return struct.pack(">I", _PROOF + len(payload)) + proof + payload

    def feed(self, data: bytes) -> list[messages.Unread]:
        """Take bytes from the wire and return the messages they complete. Raises BrokenWireError."""
        self._buffer += data
        found: list[messages.Unread] = []
        if not self._session and not self._greet():
            return found
        while len(self._buffer) >= 4:
            (length,) = struct.unpack(">I", self._buffer[:4])
            if length > (LIMIT if self.proven else FIRST_LIMIT):
                raise BrokenWireError("a frame is too long")
            if length < _PROOF:
                raise BrokenWireError("a frame is too short")
            if len(self._buffer) < 4 + length:
                break
            frame, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
            found.append(self._take(frame[:_PROOF], frame[_PROOF:]))
        return found

    def _greet(self) -> bool:
        nonce = self._buffer[:_NONCE]
        if not _DIGITS.issuperset(nonce):
            raise BrokenWireError("no greeting")
        if len(nonce) < _NONCE:
            return False
        self._buffer = self._buffer[_NONCE:]
        self._session = self._nonce + nonce if self._leads else nonce + self._nonce
        return True

    def _take(self, proof: bytes, payload: bytes) -> messages.Unread:
        if not hmac.compare_digest(self._proof(not self._leads, self._received, payload), proof):
            raise BrokenWireError("a frame has a wrong HMAC")
        self._received += 1
        return _parse(payload)

    def _proof(self, by_leader: bool, number: int, payload: bytes) -> bytes:
        sender = b"leader" if by_leader else b"follower"
        return hmac.new(self._key, sender + self._session + struct.pack(">Q", number) + payload, "sha256").digest()


def _parse(payload: bytes) -> messages.Unread:
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        raise BrokenWireError("a frame is not JSON") from None
    if not isinstance(message, dict):
        raise BrokenWireError("a frame is not an object")
    return message


class Channel:
    """One connection: a non-blocking socket with a session on it.

    Args:
        take: Called with every message.
        closed: Called once with the reason, unless `close` was called.
        opened: Called when messages may be sent.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        session: WireSession,
        take: Callable[[messages.Unread], None],
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
            pass  # some systems raise if the other side has closed; the next read reports that
        self._write()

    def send(self, message: messages.Unread) -> None:
        """Send a message, or as much of it as the socket takes; the rest is sent when the socket is writable."""
        if self.alive:
            self._output += self._session.pack(message)
            self._write()

    def hand_over(self, take: Callable[[messages.Unread], None], closed: Callable[[str], None]) -> None:
        """Replace the callbacks for messages and for the end of the connection."""
        self._take, self._closed = take, closed

    def close(self) -> None:
        """Close the connection without calling `closed`, and drop all references. May be called twice."""
        if self.alive:
            self.alive = False
            self._loop.forget(self._sock)
            self._sock.close()
            self._output = b""
            # They refer to this channel: without this, only the cycle collector would free its memory.
            self._take, self._closed, self._opened = _ignore, _ignore, lambda: None

    def _read(self) -> None:
        if not self.alive:
            return
        try:
            # Before authentication, read no more than the first frame: the rest stays in the kernel.
            data = self._sock.recv(1 << 16 if self._session.proven else FIRST_LIMIT)
            if not data:
                raise ConnectionResetError("the other side closed the connection")
            was_open = self._session.open
            received = self._session.feed(data)
        except BlockingIOError:
            return
        except (OSError, BrokenWireError) as error:
            self._fail(getattr(error, "strerror", None) or str(error))
            return
        if self._session.open and not was_open:
            self._opened()
        for message in received:
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
            self._fail("the other side no longer reads")
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
    """The messages exchanged with one other supervisor: the last one received, and those not yet confirmed.

    Args:
        kinds: The messages that the other side may send.
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

    def send(self, message: messages.Unread) -> None:
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

    def take(self, message: messages.Unread) -> dict[str, Any] | None:
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
