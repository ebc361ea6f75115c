"""Decides when a queued run may begin: its hosts' leases are taken one by one, or given back. No I/O."""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ...protocol.leases import Lease


class TurnOrder(NamedTuple):
    """An order for one host: take its lease, or put it back into the queue."""

    node: int
    take: bool


class Turn:
    """The turn of one queued run.

    Leases are taken only while every host has room, in an order of hosts that is the same for all runs. No run holds a
    host while it waits for another: if one take fails, all earlier ones are given back.

    Args:
        order: Node ranks in the order in which every run takes these hosts.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(order)
        self._room = dict.fromkeys(order, False)
        self._taken: List[int] = []
        self._asked = False
        self.why: Dict[int, str] = {}
        """Node rank → what the run waits for there."""

    @property
    def granted(self) -> bool:
        """Whether the leases of all hosts are held."""
        return len(self._taken) == len(self._order)

    def hear(self, node: int, room: bool, why: str) -> List[TurnOrder]:
        """Note whether a host has room for this run, or why not; returns the orders to send."""
        self._room[node] = room
        self.why.pop(node, None)
        if not room:
            self.why[node] = why
        return self._begin()

    def took(self, node: int, done: bool) -> List[TurnOrder]:
        """Note whether a host has taken its lease; returns the orders to send."""
        if not self._asked or self.granted or node != self._order[len(self._taken)]:
            return []
        if done:
            self._taken.append(node)
            return [] if self.granted else [TurnOrder(self._order[len(self._taken)], True)]
        back = [TurnOrder(one, False) for one in self._taken]
        self._taken, self._asked = [], False
        self._room[node] = False  # the host reports when it has room again
        return back

    def _begin(self) -> List[TurnOrder]:
        if self._asked or not all(self._room.values()):
            return []
        self._asked = True
        return [TurnOrder(self._order[0], True)]


class Services:
    """A waiting run's view of the queue on its host: which users had a turn since a run of its own user had one.

    Others may write any place into their leases. With this they still get only one turn for each of this user's.
    """

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._held: Optional[Set[Tuple[int, str]]] = None
        self._turns: Counter[int] = Counter()
        self._present = 0

    def see(self, leases: Sequence[Lease]) -> None:
        """Note all leases of the host."""
        own = [one["round"] for one in leases if one["uid"] == self._uid and one["state"] == "waiting"]
        self._present = min(own, default=0) - 1
        held = {(one["uid"], one["run"]) for one in leases if one["state"] == "held" and one["kind"] == "run"}
        started = Counter(uid for uid, _ in held - (held if self._held is None else self._held))
        if self._uid in started:
            self._turns.clear()
        self._turns.update(started)
        self._held = held

    def least(self, uid: int) -> int:
        """The earliest round that another user's first waiting run may have."""
        return self._present + self._turns[uid]
