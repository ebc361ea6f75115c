"""TCP ports of this host: which are free, which are spoken for, and who listens."""

from __future__ import annotations

import os
import socket
from typing import Any, Callable, Iterable, NamedTuple

from . import locks
from .problem import Problem


class Reserved(NamedTuple):
    """A port that no other disttui of this machine takes while `holder` is open."""

    port: int
    holder: Any


def reserve(ports: tuple[int, int], after: int = 0) -> Reserved:
    """Find a free port of an inclusive range, starting behind `after`. Raises Problem when none is left."""
    first, last = ports
    order = [*range(max(first, after + 1), last + 1), *range(first, min(after, last) + 1)]
    for port in order:
        holder = locks.take(f"disttui-port-{port}")
        if holder is None:
            continue
        if is_free(port):
            return Reserved(port, holder)
        holder.close()
    raise Problem(f"no free port between {first} and {last}", "widen launch.ports in the profile")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    try:
        listen(port).close()
    except OSError:
        return False
    return True


def listen(port: int, only: str | None = None) -> socket.socket:
    """Listen on a port of every address, IPv4 and IPv6, or of one alone. Raises OSError when it is taken."""
    if only is not None:
        family = socket.AF_INET6 if ":" in only else socket.AF_INET
        return _listen(socket.socket(family, socket.SOCK_STREAM), (only, port))
    try:
        server = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return _listen(socket.socket(socket.AF_INET, socket.SOCK_STREAM), ("0.0.0.0", port))  # noqa: S104
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return _listen(server, ("::", port))


def is_listening(port: int, pids: Callable[[], Iterable[int]]) -> bool:
    """Whether one of these processes listens on the port; where the system hides that, whether anybody does.

    They are asked for only when somebody listens: finding them may mean reading the whole process table.
    """
    inodes = _listeners(port)
    if inodes is None:
        return _answers(port)
    if not inodes:
        return False
    owned: set[str] = set()
    for pid in pids():
        owned |= _sockets(pid)
    return bool(inodes & owned)


def listener(port: int) -> int | None:
    """The pid of a process that listens on the port, 0 where it cannot be seen whose it is; None: nobody does."""
    inodes = _listeners(port)
    if not inodes:
        return None
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return next((pid for pid in pids if inodes & _sockets(pid)), 0)


def _listen(server: socket.socket, address: tuple[str, int]) -> socket.socket:
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen(128)
    except OSError:
        server.close()
        raise
    server.setblocking(False)
    return server


def _listeners(port: int) -> set[str] | None:
    found: set[str] = set()
    seen = False
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name, encoding="ascii") as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        seen = True
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found if seen else None


def _sockets(pid: int) -> set[str]:
    folder = f"/proc/{pid}/fd"
    found: set[str] = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("localhost", port), timeout=0.2).close()
    except OSError:
        return False
    return True
