"""Another user of a host, who takes whatever names and ports anybody may take. Plain Python, run by `python3 -c`.

It is given JSON: `names`, abstract names to take beside all that /proc/net/unix shows; `ports`, [first, last] or null;
`seed`: null takes all of them at once and keeps them, a number takes and leaves them at random. It says "there" once
it has taken what it could at first, and goes on until its standard input ends.
"""

from __future__ import annotations

import json
import random
import select
import socket
import sys
from pathlib import Path


class Neighbour:
    """What the other user holds."""

    def __init__(self, names: list[str], ports: list[int] | None, seed: int | None) -> None:
        self.names = set(names)
        self.ports = range(ports[0], ports[1] + 1) if ports else range(0)
        self.dice = None if seed is None else random.Random(seed)
        self.held: dict[str | int, socket.socket] = {}

    def seen(self) -> set[str]:
        """All abstract names that anybody can see."""
        rows = [line.split() for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()]
        self.names |= {row[7][1:] for row in rows if len(row) > 7 and row[7].startswith("@")}
        return self.names

    def look(self) -> None:
        """Take what is wanted now, and answer who calls."""
        wanted: list[str | int] = [*self.seen(), *self.ports]
        if self.dice:
            for key in self.dice.sample(sorted(self.held, key=str), len(self.held) // 4):
                self.held.pop(key).close()
            wanted = self.dice.sample(sorted(wanted, key=str), len(wanted) // 3)
        for key in wanted:
            if key not in self.held:
                self.take(key)
        for server in select.select(list(self.held.values()), [], [], 0.25 if self.dice else 0.02)[0]:
            self.lie_at(server)

    def take(self, key: str | int) -> None:
        """Listen at a name or a port, where nobody does."""
        server = socket.socket(socket.AF_UNIX if isinstance(key, str) else socket.AF_INET)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind("\0" + key if isinstance(key, str) else ("0.0.0.0", key))
            server.listen(64)
        except OSError:
            server.close()
            return
        server.setblocking(False)
        self.held[key] = server

    def lie_at(self, server: socket.socket) -> None:
        """Answer as if all were well."""
        try:
            visitor, _ = server.accept()
            with visitor:
                visitor.send(b'{"threads": [], "recorder": {}, "nonce": "%s"}\n' % (b"0" * 32))
        except OSError:
            pass


def main() -> None:
    neighbour = Neighbour(**json.loads(sys.argv[1]))
    neighbour.look()
    print("there", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        neighbour.look()


main()
