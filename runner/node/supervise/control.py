"""The supervisor's door for requests of this user on this host: one JSON line per connection."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from typing import Any, Callable

from .. import locks
from ..loop import Loop


class Control:
    """Takes requests at a folder's UNIX socket and hands them to `take`."""

    def __init__(self, loop: Loop, folder: str, take: Callable[[dict[str, Any]], None]) -> None:
        self._take = take
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = locks.socket_address(locks.name_of("run", folder))
        if not address.startswith("\0") and os.path.exists(address):
            os.unlink(address)
        self._server.bind(address)
        self._server.listen(8)
        self._server.setblocking(False)
        loop.watch(self._server, self._accept)

    def _accept(self) -> None:
        try:
            client, _ = self._server.accept()
        except OSError:
            return
        with client:
            if not is_own(client):
                return
            client.settimeout(0.5)
            try:
                request = json.loads(client.recv(4096))
            except (OSError, ValueError, RecursionError):
                return
        if isinstance(request, dict):
            self._take(request)


def ask(folder: str, request: dict[str, Any]) -> bool:
    """Hand a request to the supervisor of a folder; False when there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(2.0)
        try:
            client.connect(locks.socket_address(locks.name_of("run", folder)))
            if not is_own(client):
                return False
            client.sendall(json.dumps(request).encode())
        except OSError:
            return False
    return True


def is_own(peer: socket.socket) -> bool:
    """Whether the other end of a UNIX socket belongs to this user (abstract names have no permissions)."""
    if sys.platform != "linux":
        return True  # the socket's folder is 0700
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.getuid())
