import json
import socket
import time


class TCPStore:
    """Where the launchers of all hosts tell how many ranks they have; torch's has more to it."""

    def __init__(self, host, port, world_size, is_master, master_listen_fd=None):
        """TCPStore(..., master_listen_fd: int | None = None)"""
        self._place, self._others, self._server = (host, port), world_size - 1, None
        if master_listen_fd is not None:
            self._server = socket.socket(fileno=master_listen_fd)
        elif is_master:
            self._server = socket.create_server(("", port))

    def meet(self, node, ranks):
        """Return the number of this host's first rank, and of all ranks, once all hosts have come."""
        if self._server is None:
            return tuple(self._ask([node, ranks]))
        self._server.settimeout(0.1)  # so that signals are heard
        counts, ways = {node: ranks}, {}
        while len(ways) < self._others:
            try:
                way, _ = self._server.accept()
            except TimeoutError:
                continue
            other, count = json.loads(way.makefile().readline())
            counts[other], ways[other] = count, way
        for other, way in ways.items():
            with way:
                way.sendall(json.dumps([_first(counts, other), sum(counts.values())]).encode() + b"\n")
        return _first(counts, node), sum(counts.values())

    def _ask(self, said):
        end = time.monotonic() + 60
        while True:
            try:
                with socket.create_connection(self._place, 5) as way:
                    way.sendall(json.dumps(said).encode() + b"\n")
                    way.settimeout(None)
                    return json.loads(way.makefile().readline())
            except (OSError, ValueError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


def _first(counts, node):
    return sum(count for other, count in counts.items() if other < node)
