"""UNIX sockets between processes of one user: an unguessable name, and a check of the peer's user.

Every user can bind a free abstract name. So each socket gets a new random name, which is stored where only its user
can read it, and both sides check the user of the other process before they use its data.
"""

from __future__ import annotations

import os
import socket
import struct
import sys


def listen() -> socket.socket:
    """Listen on a new name: an abstract one, or on macOS a file in the private folder for temporary files."""
    name = "disttui-" + os.urandom(16).hex()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind("\0" + name if sys.platform == "linux" else _path(name))
        server.listen(128)
    except OSError:
        server.close()
        raise
    return server


def address_of(server: socket.socket) -> str:
    """The address for `connect`: an abstract name without its leading NUL, or a path."""
    address = server.getsockname()
    return address[1:].decode() if isinstance(address, bytes) else str(address)


def connect(address: str, timeout: float) -> socket.socket:
    """Connect to a socket of this user or of root. Raises OSError, including for a socket of another user."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Any user can keep the queue of an abstract name full. Python's own timeout would then fail immediately; a
        # blocking connect waits, and the kernel admits waiting clients in turn.
        wait = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        client.connect(address if address.startswith("/") else "\0" + address)
        client.settimeout(timeout)
        if not same_user(client):
            raise PermissionError(f"another user listens on the socket {address}")
    except OSError:
        client.close()
        raise
    return client


def same_user(peer: socket.socket) -> bool:
    """Whether the peer belongs to this user or to root: abstract names have no permissions."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # a file in a private folder of this user
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in (0, os.getuid())


def _path(name: str) -> str:
    import tempfile

    return os.path.join(tempfile.gettempdir(), name)
