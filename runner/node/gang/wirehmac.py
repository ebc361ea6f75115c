"""Frames of the gang: authenticated with the run's key, bound to their session and their place in it.

The MAC is checked over the raw bytes before they are parsed.
"""

from __future__ import annotations

import hmac
import json
import os
import struct
from typing import Any

LIMIT = 64 * 1024
"""Bytes of a frame behind its length."""
FIRST_LIMIT = 1024
"""The same of the first frame, which is read before the other side is authenticated."""
_PROOF = 32
_NONCE = 32
_DIGITS = frozenset(b"0123456789abcdef")


class BrokenWireError(Exception):
    """The other side does not have the key, or speaks another protocol."""


class WireSession:
    """One side of one connection, without the socket: bytes in, messages out, and back.

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
        """Whether the other side's nonce has come, so that `pack` may be used."""
        return bool(self._session)

    @property
    def proven(self) -> bool:
        """Whether the other side has shown that it has the key."""
        return self._received > 0

    def greeting(self) -> bytes:
        """The first bytes of each side, the only ones without a MAC."""
        return self._nonce

    def pack(self, message: dict[str, Any]) -> bytes:
        """The frame of a message. Raises BrokenWireError when it is too long."""
        payload = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        if _PROOF + len(payload) > (LIMIT if self._sent else FIRST_LIMIT):
            raise BrokenWireError("a message is too long")
        proof = self._proof(self._leads, self._sent, payload)
        self._sent += 1
        return struct.pack(">I", _PROOF + len(payload)) + proof + payload

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take bytes from the wire and return the messages they complete. Raises BrokenWireError."""
        self._buffer += data
        messages: list[dict[str, Any]] = []
        if not self._session and not self._greet():
            return messages
        while len(self._buffer) >= 4:
            (length,) = struct.unpack(">I", self._buffer[:4])
            if length > (LIMIT if self.proven else FIRST_LIMIT):
                raise BrokenWireError("a frame is too long")
            if length < _PROOF:
                raise BrokenWireError("a frame is too short")
            if len(self._buffer) < 4 + length:
                break
            frame, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
            messages.append(self._take(frame[:_PROOF], frame[_PROOF:]))
        return messages

    def _greet(self) -> bool:
        nonce = self._buffer[:_NONCE]
        if not _DIGITS.issuperset(nonce):
            raise BrokenWireError("no greeting")
        if len(nonce) < _NONCE:
            return False
        self._buffer = self._buffer[_NONCE:]
        self._session = self._nonce + nonce if self._leads else nonce + self._nonce
        return True

    def _take(self, proof: bytes, payload: bytes) -> dict[str, Any]:
        if not hmac.compare_digest(self._proof(not self._leads, self._received, payload), proof):
            raise BrokenWireError("a frame has the wrong proof")
        self._received += 1
        return _parse(payload)

    def _proof(self, by_leader: bool, number: int, payload: bytes) -> bytes:
        sender = b"leader" if by_leader else b"follower"
        return hmac.new(self._key, sender + self._session + struct.pack(">Q", number) + payload, "sha256").digest()


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        raise BrokenWireError("a frame is not JSON") from None
    if not isinstance(message, dict):
        raise BrokenWireError("a frame is not an object")
    return message
