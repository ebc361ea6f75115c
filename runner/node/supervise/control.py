"""Local control of a supervisor: a socket that takes one line of JSON, and the stop file."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Callable, Mapping

from .. import sockets
from ..journal import read_object, write_json
from ..loop import Loop


class Control:
    """Receives requests on a UNIX socket and passes them to `take`; clients find its `address` in supervisor.json."""

    def __init__(self, loop: Loop, take: Callable[[dict[str, object]], None]) -> None:
        self._take = take
        self._server = sockets.listen()
        self._server.setblocking(False)
        self.address = sockets.address_of(self._server)
        loop.watch(self._server, self._accept)

    def _accept(self) -> None:
        try:
            client, _ = self._server.accept()
        except OSError:
            return
        with client:
            if not sockets.same_user(client):
                return
            client.settimeout(0.5)
            try:
                request = json.loads(client.recv(4096))
            except (OSError, ValueError, RecursionError):
                return
        if isinstance(request, dict):
            self._take(request)


def read_up(folder: str) -> dict[str, object]:
    """The content of supervisor.json; empty if it is missing or the job has replaced it."""
    found = read_object(os.path.join(folder, "supervisor.json"))
    return found if isinstance(found.get("pid"), int) else {}


def ask(folder: str, request: Mapping[str, object], wait: float = 0.0) -> bool:
    """Send a request to the supervisor of a folder; False if there is no supervisor.

    With `wait`, also False if the supervisor has not accepted the request within that many seconds.
    """
    address = read_up(folder).get("control")
    if not isinstance(address, str):
        return False
    try:
        with sockets.connect(address, 2.0) as client:
            client.sendall(json.dumps(request).encode())
            if wait:
                client.settimeout(wait)
                client.recv(1)  # it closes the connection as soon as it has read the request
    except (OSError, ValueError):
        return False
    return True


def write_stop(folder: str, reason: str, now: bool) -> None:
    """Write the stop file, which is never cleared: the first one stays unless `now` is added. Raises OSError.

    No lock is taken: a stop must never wait.
    """
    path = os.path.join(folder, "stop")
    record = {"t": time.time(), "reason": reason, "now": now}
    if now:
        if not read_object(path).get("now"):
            write_json(path, record)
        return
    passing = f"{path}.{os.getpid()}.{threading.get_ident()}"
    write_json(passing, record)
    try:
        os.link(passing, path)  # unlike a rename it never replaces a file with `now`
    except OSError:
        # A stop file exists already, or the file system has no hard links.
        if not read_object(path):
            os.rename(passing, path)
            return
    os.unlink(passing)
