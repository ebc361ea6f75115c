"""The membership of the gang: which hosts have joined, which are lost, and which addresses all hosts reach."""

from __future__ import annotations

import time
from typing import Dict, List, Optional, Sequence, Set

from ...protocol.cause import Cause
from ..observe.ranks import MESSAGE_LIMIT


class Roll:
    """The hosts of a run by node rank, as its leader knows them.

    Args:
        names: Of all hosts.
        addresses: The leader's own, best first.
    """

    def __init__(self, names: Sequence[str], addresses: Sequence[str]) -> None:
        self._names = names
        self._addresses = addresses
        self._reached: Dict[int, Set[str]] = {0: set(addresses)}
        self.nodes = range(len(names))
        self.present = {0}
        self.lost: Dict[int, float] = {}
        """Node → unix time of its last sign of life."""

    @property
    def missing(self) -> List[int]:
        """Node ranks that have not joined or are lost."""
        return [node for node in self.nodes if node not in self.present or node in self.lost]

    @property
    def master(self) -> Optional[str]:
        """The best address that all hosts have reached."""
        if len(self._reached) < len(self.nodes):
            return None
        return next((ip for ip in self._addresses if all(ip in found for found in self._reached.values())), None)

    def reach(self, node: int, addresses: Sequence[str]) -> None:
        """A host has reached the leader by these addresses."""
        self._reached[node] = set(addresses)

    def strike(self, node: int) -> None:
        """Remove a host that left before the run has begun, as if it had never joined."""
        self.present.discard(node)
        self._reached.pop(node, None)

    def not_joined(self, limit: float) -> Cause:
        """The cause of a run that could not begin within `limit` seconds."""
        names, missing = self._names, self.missing
        if missing:
            who = ", ".join(f"{names[node]} (node {node})" for node in missing)
            return of_host(missing[0], "join", f"{who} did not join within {limit:g} s")
        reached = "; ".join(
            f"{names[node]} reached {', '.join(sorted(found)) or 'none'}"
            for node, found in sorted(self._reached.items())
            if node
        )
        words = f"no address of {names[0]} was reached by all hosts within {limit:g} s: {reached}"
        return of_host(0, "join", words)

    def host_lost(self, why: str) -> Cause:
        """The cause of a run that ends by the hosts that are lost: the first is blamed, the others are named."""
        first, *others = sorted(self.lost, key=lambda node: self.lost[node])
        too = f"; lost as well: {', '.join(self._names[node] for node in others)}" if others else ""
        return of_host(first, "host lost", why + too, self.lost[first])


def of_host(node: int, kind: str, message: str, last: Optional[float] = None) -> Cause:
    """A cause that belongs to no rank. `last`: unix time of a lost host's last sign of life."""
    found = Cause(node=node, rank=None, kind=kind, type="", message=message[:MESSAGE_LIMIT], code=None, at=time.time())
    if last is not None:
        found["last"] = round(last, 3)
    return found
