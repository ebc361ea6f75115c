"""When a queued run may begin: the leases of all its hosts are taken one after the other, or given back. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ...protocol.leases import Lease


class TurnOrder(NamedTuple):
    """An order for one host: take its lease, or go back into line with it."""

    node: int
    take: bool


class Turn:
    """The turn of one run.

    A lease is taken only where every host has room at that moment, and hosts are gone through in an order that is the
    same for all runs. No run holds a host while it waits for another: a take that fails gives back all before it.

    Args:
        order: Node ranks, in the order in which every run takes these hosts.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(order)
        self._room = dict.fromkeys(order, False)
        self._taken: List[int] = []
        self._asked = False
        self.why: Dict[int, str] = {}
        """Node rank → what it waits for there."""

    @property
    def granted(self) -> bool:
        """Whether the leases of all hosts are held."""
        return len(self._taken) == len(self._order)

    def hear(self, node: int, room: bool, why: str) -> List[TurnOrder]:
        """A host has, or no longer has, room for this run."""
        self._room[node] = room
        self.why.pop(node, None)
        if not room:
            self.why[node] = why
        return self._begin()

    def took(self, node: int, done: bool) -> List[TurnOrder]:
        """A host has taken its lease, or could not."""
        if not self._asked or self.granted or node != self._order[len(self._taken)]:
            return []
        if done:
            self._taken.append(node)
            return [] if self.granted else [TurnOrder(self._order[len(self._taken)], True)]
        back = [TurnOrder(one, False) for one in self._taken]
        self._taken, self._asked = [], False
        self._room[node] = False  # it says when it has room again
        return back

    def _begin(self) -> List[TurnOrder]:
        if self._asked or not all(self._room.values()):
            return []
        self._asked = True
        return [TurnOrder(self._order[0], True)]


class Services:
    """What a waiting run has seen of the queue on its host: who had a turn since a run of its own user had one.

    Others may write any place into their leases. By this they still get one turn for each of this user's.
    """

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._held: Optional[Set[Tuple[int, str]]] = None
        self._turns: Counter[int] = Counter()
        self._present = 0

    def see(self, leases: Sequence[Lease]) -> None:
        """Take note of all leases of the host."""
        own = [one["round"] for one in leases if one["uid"] == self._uid and one["state"] == "waiting"]
        self._present = min(own, default=0) - 1
        held = {(one["uid"], one["run"]) for one in leases if one["state"] == "held" and one["kind"] == "run"}
        started = Counter(uid for uid, _ in held - (held if self._held is None else self._held))
        if self._uid in started:
            self._turns.clear()
        self._turns.update(started)
        self._held = held

    def least(self, uid: int) -> int:
        """The round in which another user's first waiting run is at the earliest."""
        return self._present + self._turns[uid]
