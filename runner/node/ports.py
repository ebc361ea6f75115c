"""TCP ports of this host: which are free, which are reserved, and which processes listen."""

from __future__ import annotations

import os
import socket
from typing import Callable, Container, Iterable, NamedTuple

from . import folders, procs
from .problem import Problem

_SHOWN = os.path.exists("/proc/net/tcp")
"""Whether the system shows which process listens on which port."""


class Reserved(NamedTuple):
    """A port that no other process can take while `server` listens on it."""

    port: int
    server: socket.socket


def reserve(ports: tuple[int, int], after: int = 0, only: str | None = None, without: Container[int] = ()) -> Reserved:
    """Listen on a free port of an inclusive range, starting after `after`; on every address, or only on `only`.

    Raises Problem, naming the holders of the ports, if every port outside `without` is taken.
    """
    first, last = ports
    order = [*range(max(first, after + 1), last + 1), *range(first, min(after, last) + 1)]
    why = "torch cannot listen at any of them"
    for port in order:
        if port in without:
            continue
        try:
            return Reserved(port, listen(port, only))
        except OSError as error:
            why = error.strerror or str(error)
    raise Problem(f"no free port between {first} and {last}: {holders(ports) or why}", "change launch.ports")


def holders(ports: tuple[int, int]) -> str:
    """The processes that listen on ports of an inclusive range, as a text; "" if the system hides them."""
    first, last = ports
    found: dict[int, dict[str, int]] = {}
    for row in listening():
        if first <= row.port <= last:
            found.setdefault(row.uid, {})[row.inode] = row.port
    owners = {inode: pid for pid, inodes in _all_sockets().items() for inode in inodes} if found else {}
    words = []
    for uid, inodes in sorted(found.items(), key=lambda item: -len(set(item[1].values()))):
        pids = sorted({owners[inode] for inode in inodes if inode in owners})
        seen = ", ".join(f"pid {pid}: {procs.command(pid)[:80]}" for pid in pids[:3])
        count = len(set(inodes.values()))
        held = f"port {next(iter(inodes.values()))}" if count == 1 else f"{count} ports"
        who = "you hold" if uid == os.getuid() else f"{folders.user_name(uid)} holds"
        words.append(f"{who} {held}" + (f" ({seen})" if seen else ""))
    return ", ".join(words[:5])


def listen(port: int, only: str | None = None) -> socket.socket:
    """Listen on a port of every address, IPv4 and IPv6, or of one only. Raises OSError if it is taken."""
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
    """Whether one of these processes listens on the port; if the system hides that, whether any process does.

    `pids` is called only when a process listens: finding them may mean reading the whole process table.
    """
    if not _SHOWN:
        return _answers(port)
    inodes = {row.inode for row in listening() if row.port == port}
    if not inodes:
        return False
    owned: set[str] = set()
    for pid in pids():
        owned |= sockets_of(pid)
    return bool(inodes & owned)


def own_listener(port: int) -> int | None:
    """The pid of this user's process that listens on the port, 0 if it is not visible, None if nothing listens."""
    inodes = {row.inode for row in listening() if row.port == port and row.uid == os.getuid()}
    if not inodes:
        return None
    return next((pid for pid, sockets in _all_sockets().items() if inodes & sockets), 0)


def _listen(server: socket.socket, address: tuple[str, int]) -> socket.socket:
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen(512)
    except OSError:
        server.close()
        raise
    server.setblocking(False)
    return server


class _SocketRow(NamedTuple):
    port: int
    uid: int
    inode: str


def listening(pid: str = "self") -> list[_SocketRow]:
    """The listening TCP sockets that /proc shows in the network namespace of a process."""
    found = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A":
                found.append(_SocketRow(int(fields[1].rpartition(":")[2], 16), int(fields[7]), fields[9]))
    return found


def _all_sockets() -> dict[int, set[str]]:
    """The inodes of all visible sockets, by pid."""
    return {int(name): sockets_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}


def sockets_of(pid: int) -> set[str]:
    """The inodes of a process's open sockets, as far as they are visible."""
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
