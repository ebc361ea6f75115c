"""The hosts of the gang: which have joined or are lost, common addresses, and whether all ranks resume at one point."""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Literal, Optional, Sequence, Set

from ...protocol.cause import Cause
from ...protocol.events import Event
from ...protocol.gang import SignsOfLife
from ..journal import note
from ..observe.ranks import MESSAGE_LIMIT


class Membership:
    """The hosts of a run by node rank, as the leader knows them.

    Args:
        names: The names of all hosts.
        addresses: The leader's own addresses, best first.
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
        """The best address that all hosts can reach."""
        if len(self._reached) < len(self.nodes):
            return None
        return next((ip for ip in self._addresses if all(ip in found for found in self._reached.values())), None)

    def reach(self, node: int, addresses: Sequence[str]) -> None:
        """Note the addresses at which a host has reached the leader."""
        self._reached[node] = set(addresses)

    def strike(self, node: int) -> None:
        """Remove a host that left before the run has begun, as if it had never joined."""
        self.present.discard(node)
        self._reached.pop(node, None)

    def not_joined(self, limit: float) -> Cause:
        """The cause of failure of a run that could not begin within `limit` seconds."""
        names, missing = self._names, self.missing
        if missing:
            who = ", ".join(f"{names[node]} (node {node})" for node in missing)
            return of_host(missing[0], "join", f"{who} did not join in {limit:g} s: not started there, or cut off")
        reached = "; ".join(
            f"{names[node]} reached {', '.join(sorted(found)) or 'none'}"
            for node, found in sorted(self._reached.items())
            if node
        )
        words = f"no address of {names[0]} was reached by all hosts in {limit:g} s: {reached}"
        return of_host(0, "join", words)

    def host_lost(self, why: str) -> Cause:
        """The cause of failure of a run that ends because hosts are lost: the first is blamed, the others are named."""
        first, *others = sorted(self.lost, key=lambda node: self.lost[node])
        too = f"; also lost: {', '.join(self._names[node] for node in others)}" if others else ""
        return of_host(first, "host lost", why + too, self.lost[first])


def of_host(node: int, kind: str, message: str, last: Optional[float] = None) -> Cause:
    """A cause that concerns no single rank. `last`: unix time of a lost host's last sign of life."""
    found = Cause(node=node, rank=None, kind=kind, type="", message=message[:MESSAGE_LIMIT], code=None, at=time.time())
    if last is not None:
        found["last"] = round(last, 3)
    return found


_Field = Literal["first_steps", "first_epochs"]
_NAMES: Dict[_Field, str] = {"first_steps": "step", "first_epochs": "epoch"}
_MOST_SHOWN = 8


class Resume:
    """Emits one `note` for an attempt whose ranks begin at different points, according to the `signs` of all hosts.

    Only ranks that began the first attempt with the same step are compared: others may log at another interval.

    Args:
        say: Called with an event.
    """

    def __init__(self, say: Callable[[Event], None]) -> None:
        self._say = say
        self._attempt = 0
        self._noted = 0
        self._first: Dict[str, Dict[int, float]] = {}
        """Points of the first attempt with reports."""
        self._now: Dict[str, Dict[int, float]] = {}
        """Points of the newest attempt."""

    def hear(self, attempt: int, message: SignsOfLife) -> None:
        """Process a host's `signs`."""
        if attempt < self._attempt:
            return
        if attempt > self._attempt:
            self._first = self._first or self._now
            self._attempt, self._now = attempt, {}
        for field in _NAMES:
            known = self._now.setdefault(field, {})
            for rank, value in message.get(field, {}).items():
                if len(known) < 65_536:
                    known.setdefault(int(rank), value)
        if self._noted != attempt:
            self._compare()

    def _compare(self) -> None:
        for field, name in _NAMES.items():
            before = self._first.get(field, {})
            now = {rank: value for rank, value in self._now.get(field, {}).items() if rank in before}
            if len({before[rank] for rank in now}) == 1 and len(set(now.values())) > 1:
                self._noted = self._attempt
                points: Dict[float, List[int]] = {}
                for rank, value in sorted(now.items()):
                    points.setdefault(value, []).append(rank)
                starts = " and ".join(f"{name} {value:g} on {_ranks(ranks)}" for value, ranks in points.items())
                text = (
                    f"the ranks do not resume from the same point: attempt {self._attempt} begins with {starts}."
                    " Checkpoints on local disks may differ: use a folder that all hosts share"
                )
                self._say(note(text))
                return


def _ranks(ranks: List[int]) -> str:
    more = len(ranks) - _MOST_SHOWN
    shown = ", ".join(map(str, ranks[:_MOST_SHOWN])) + (f" and {more} more" if more > 0 else "")
    return ("ranks " if len(ranks) > 1 else "rank ") + shown
