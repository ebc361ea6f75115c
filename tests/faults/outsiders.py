"""Who means harm while something else happens to a run: another user on each of its hosts, and a host that is none."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path

from tests.cluster.host import ClusterHost
from tests.neighbours import squatting

PORTS = (29500, 29599)
_STRANGER = Path(__file__).parents[1] / "stranger.py"


class Outsiders:
    """They are there until `close`; one whose host is switched off goes with it, by `leave`."""

    def __init__(self, hosts: list[ClusterHost], outside: ClusterHost, dice: random.Random) -> None:
        self._address = hosts[0].address
        self._at: list[contextlib.ExitStack] = [contextlib.ExitStack() for _ in hosts]
        program = [sys.executable, "-c", _STRANGER.read_text()]
        attack = outside.in_network([*program, "attack", str(dice.randrange(10**9))])
        self._stranger = subprocess.Popen(attack, stdin=subprocess.PIPE, text=True)
        for host, stack in zip(hosts, self._at, strict=True):
            seed = dice.randrange(10**9)
            stack.enter_context(squatting(ports=PORTS, seed=seed, enter=host.in_network))
        tap = subprocess.Popen(hosts[0].in_network([*program, "tap", *map(str, PORTS)]), stdout=self._stranger.stdin)
        self._at[0].callback(_end, tap)

    def point(self, gang: int, torch: int) -> None:
        """Tell the stranger at which ports of the first host the gang and torch listen."""
        assert self._stranger.stdin
        for kind, port in (("gang", gang), ("touch", torch)):
            self._stranger.stdin.write(f"{kind} {self._address} {port}\n")
        self._stranger.stdin.flush()

    def leave(self, node: int) -> None:
        """End what lives in the network of a host."""
        self._at[node].close()

    def close(self) -> None:
        """End them all, who must have been there until now."""
        for stack in self._at:
            stack.close()
        _end(self._stranger)


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    code = process.poll()
    process.kill()
    process.communicate()
    assert code is None, f"{process.args!r} ended with {code}"
