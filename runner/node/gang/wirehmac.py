"""Frames of the gang: JSON that only who has the run's key can have written, in this order, in this session."""

from __future__ import annotations

import hmac
import json
import os
import struct
from typing import Any

LIMIT = 64 * 1024


class BrokenWireError(Exception):
    """The other side is a stranger, or speaks something else."""


class Session:
    """One side of one connection, without the socket: bytes in, messages out, and back.

    Args:
        key: The run's secret.
        leads: Whether this is the leader's side.
    """

    def __init__(self, key: bytes, leads: bool) -> None:
        self._key = key
        self._leads = leads
        self._nonce = os.urandom(16).hex()
        self._session = ""
        self._sent = 0
        self._received = 0
        self._buffer = b""

    @property
    def open(self) -> bool:
        """Whether the other side's nonce has come, so that `pack` may be used."""
        return bool(self._session)

    def greeting(self) -> bytes:
        """The first frame of each side, the only one without a proof."""
        return _frame({"nonce": self._nonce})

    def pack(self, message: dict[str, Any]) -> bytes:
        """The frame of a message. Raises BrokenWireError when it is too long."""
        proof = self._proof(self._leads, self._sent, message)
        data = _frame({"n": self._sent, "m": message, "h": proof})
        self._sent += 1
        return data

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take bytes from the wire and return the messages they complete. Raises BrokenWireError."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= 4:
            (length,) = struct.unpack(">I", self._buffer[:4])
            if length > LIMIT:
                raise BrokenWireError("a frame is too long")
            if len(self._buffer) < 4 + length:
                break
            payload, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
            message = self._take(_parse(payload))
            if message is not None:
                messages.append(message)
        return messages

    def _take(self, frame: dict[str, Any]) -> dict[str, Any] | None:
        if not self._session:
            nonce = frame.get("nonce")
            if not isinstance(nonce, str) or not 32 <= len(nonce) <= 64:
                raise BrokenWireError("no greeting")
            self._session = self._nonce + nonce if self._leads else nonce + self._nonce
            return None
        message, proof = frame.get("m"), frame.get("h")
        if not isinstance(message, dict) or not isinstance(proof, str) or frame.get("n") != self._received:
            raise BrokenWireError("a frame is out of order")
        expected = self._proof(not self._leads, self._received, message)
        if not hmac.compare_digest(expected.encode(), proof.encode("utf-8", "replace")):
            raise BrokenWireError("a frame has the wrong proof")
        self._received += 1
        return message

    def _proof(self, by_leader: bool, number: int, message: dict[str, Any]) -> str:
        text = ("leader" if by_leader else "follower") + self._session + str(number) + _canonical(message)
        return hmac.new(self._key, text.encode(), "sha256").hexdigest()


def _canonical(message: Any) -> str:
    return json.dumps(message, sort_keys=True, separators=(",", ":"))


def _frame(content: dict[str, Any]) -> bytes:
    data = _canonical(content).encode()
    if len(data) > LIMIT:
        raise BrokenWireError("a message is too long")
    return struct.pack(">I", len(data)) + data


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        frame = json.loads(payload)
    except (ValueError, RecursionError):
        raise BrokenWireError("a frame is no JSON") from None
    if not isinstance(frame, dict):
        raise BrokenWireError("a frame is no object")
    return frame
