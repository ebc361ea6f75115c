"""UNIX sockets between processes of one user: a name that nobody can guess, and a look at who is at the other end.

An abstract name can be bound by anybody as long as nobody has it. So it is made anew for every socket, is kept where
only its user can read, and neither side believes a word before it knows whose process it talks to.
"""

from __future__ import annotations

import os
import socket
import struct
import sys


def listen() -> socket.socket:
    """Listen at a new name: an abstract one, on macOS a file of the private folder for temporary files."""
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
    """What others need to connect: an abstract name without its leading NUL, or a path."""
    address = server.getsockname()
    return address[1:].decode() if isinstance(address, bytes) else str(address)


def connect(address: str, timeout: float) -> socket.socket:
    """Connect to a socket of this user or of root. Raises OSError, also where it is somebody else's."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Any user can fill the queue of an abstract name, and go on. Python's own timeout would give up at once where
        # it is full; the kernel lets those who wait there in by turns.
        wait = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        client.connect(address if address.startswith("/") else "\0" + address)
        client.settimeout(timeout)
        if not same_user(client):
            raise PermissionError(f"another user listens at the socket {address}")
    except OSError:
        client.close()
        raise
    return client


def same_user(peer: socket.socket) -> bool:
    """Whether the other end belongs to this user or to root: abstract names have no permissions."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # a file in a folder that is this user's alone
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in (0, os.getuid())


def _path(name: str) -> str:
    import tempfile

    return os.path.join(tempfile.gettempdir(), name)
