"""The queue as a model: interleavings of hosts, messages, ends and kills, by the functions that hosts decide with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.node.gang.turn import Turn, TurnOrder
from runner.protocol.leases import Lease, LinePlace, State, Wish, in_the_way

_HOSTS, _GPUS = 3, 2


class Waiter:
    """A queued run: its part on each host, and the messages on the way, which each host gets in their order."""

    def __init__(
        self, number: int, uses: dict[int, list[int]], priority: int, order: float, quota: int | None = None
    ) -> None:
        self.run = f"run-{number}"
        self.uses = uses
        self.place = LinePlace(-priority, order, self.run)
        self.hosts = sorted(uses)  # node rank n is the host of this number; all runs take them in this order
        self.turn = Turn(range(len(uses)))
        self.leases = {host: self._lease(host, number) for host in self.hosts}
        self.quota = quota
        self.user = number % 2
        self.wishes = {host: Wish("run", self.run, uses[host], True, self.user, "", self.place, quota) for host in uses}
        self.told: dict[int, bool | None] = dict.fromkeys(self.hosts)
        self.up: list[tuple[str, int, bool]] = []
        self.down: list[TurnOrder] = []
        self.arrived = False
        self.looks: int | None = None
        """The host that has written its lease as held, and not yet looked at all others."""
        self.alive = set(self.hosts)
        """Where its part lives; where one has died, the others end once they notice."""

    @property
    def runs(self) -> bool:
        return bool(self.alive) and self.turn.granted

    def die(self, host: int) -> None:
        """The lease goes with its part."""
        self.alive.discard(host)
        self.looks = None if self.looks == host else self.looks

    def _lease(self, host: int, number: int) -> Lease:
        return {
            "kind": "run", "state": "waiting", "run": self.run, "node_rank": 0, "gpus": self.uses[host],
            "alone": True, "since": 0.0, "until": None, "note": "", "by": "", "priority": -self.place.before,
            "order": self.place.order, "pid": 1, "start_time": 1, "pid_namespace": "", "boot_id": "", "quota": None,
            "warden_pid": None, "warden_start_time": None, "step": None, "steps": None,
            "user": self.run, "uid": number % 2,
        }  # fmt: skip


class World:
    """Hosts with their leases: the living runs' files."""

    def __init__(self, waiters: Sequence[Waiter]) -> None:
        self.waiters = waiters
        self.began: list[str] = []
        self._taken: dict[tuple[str, int], list[Lease]] = {}

    def taken(self, one: Waiter, host: int) -> list[Lease]:
        if (one.run, host) not in self._taken:
            others = [other.leases[host] for other in self.waiters if other.arrived and host in other.alive]
            self._taken[one.run, host] = in_the_way(one.wishes[host], others)
        return self._taken[one.run, host]

    def kill(self, one: Waiter, hosts: Sequence[int]) -> None:
        for host in hosts:
            one.die(host)
        self._taken.clear()

    def step(self, one: Waiter, dice: random.Random) -> bool:
        """One thing happens to a run: a host looks, or a message arrives; False: nothing is left to do for it."""
        todo = [
            ("look", host)
            for host in sorted(one.alive)
            if one.leases[host]["state"] == "waiting" and one.told[host] != (not self.taken(one, host))
        ]
        todo += [("up", 0)] * bool(one.up) + [("down", 0)] * bool(one.down)
        todo += [("taken?", one.looks)] if one.looks is not None else []
        todo += [("end", 0)] if len(one.alive) < len(one.hosts) else []
        todo = todo if one.arrived else [("arrive", 0)]
        if not todo or not one.alive:
            return False
        kind, host = dice.choice(todo)
        if kind == "arrive":
            one.arrived = True
            self._taken.clear()
        elif kind == "look":
            one.told[host] = not self.taken(one, host)
            one.up.append(("room", host, bool(one.told[host])))
        elif kind == "up":
            self._hear(one, *one.up.pop(0))
        elif kind == "down":
            self._obey(one, one.down.pop(0))
        elif kind == "taken?":
            self._look_at_all(one, host)
        else:
            self.kill(one, one.hosts)
        return True

    def _hear(self, one: Waiter, kind: str, host: int, yes: bool) -> None:
        node, before = one.hosts.index(host), one.turn.granted
        one.down += one.turn.hear(node, yes, "x") if kind == "room" else one.turn.took(node, yes)
        if one.turn.granted and not before:
            self.began.append(one.run)
            self.check()

    def _obey(self, one: Waiter, order: TurnOrder) -> None:
        host = one.hosts[order.node]
        if host in one.alive:
            self._write(one, host, "held" if order.take else "waiting")
            one.looks = host if order.take else None

    def _look_at_all(self, one: Waiter, host: int) -> None:
        """Without a lock: others may have written theirs since this run has."""
        one.looks, done = None, not self.taken(one, host)
        one.up.append(("took", host, done))
        if not done:
            self._write(one, host, "waiting")

    def _write(self, one: Waiter, host: int, state: State) -> None:
        one.leases[host]["state"] = state
        one.told[host] = None if state == "waiting" else one.told[host]
        self._taken.clear()

    def check(self) -> None:
        """No GPU has two runs that train."""
        for host in range(_HOSTS):
            used = [gpu for one in self.waiters if one.runs and host in one.alive for gpu in one.uses[host]]
            assert len(used) == len(set(used)), f"host {host}: {used}"
            for user in (0, 1):
                own = [one for one in self.waiters if one.runs and host in one.alive and one.user == user]
                assert all(sum(len(one.uses[host]) for one in own) <= (one.quota or _GPUS) for one in own)


_uses = st.dictionaries(
    st.integers(0, _HOSTS - 1),
    st.lists(st.integers(0, _GPUS - 1), min_size=1, max_size=_GPUS, unique=True),
    min_size=1,
    max_size=_HOSTS,
)


@settings(max_examples=200, deadline=None)
@given(
    uses=st.lists(_uses, min_size=2, max_size=4),
    priorities=st.lists(st.integers(0, 1), min_size=5),
    seed=st.integers(),
    quota=st.sampled_from([None, 1, 2]),
)
def test_nothing_is_booked_twice_nobody_waits_for_ever_and_nobody_is_passed_over(
    uses: list[dict[int, list[int]]], priorities: list[int], seed: int, quota: int | None
) -> None:
    """Fifty interleavings of each of 200 sets of runs, with ends and kills at any moment, of one host's part too."""
    for turn in range(50):
        dice = random.Random(seed + turn)
        uses = [{host: gpus[:quota] for host, gpus in one.items()} for one in uses]
        waiters = [Waiter(n, one, priorities[n], dice.uniform(0, 3600), quota) for n, one in enumerate(uses)]
        world = World(waiters)
        for _ in range(2000):
            moved = world.step(dice.choice(waiters), dice)
            for one in waiters:
                if one.alive and dice.random() < (0.1 if one.runs else 0.004):
                    # It has ended, all of it was killed, or one of its hosts is gone: the locks are gone with it.
                    world.kill(one, one.hosts if dice.random() < 0.5 else [dice.choice(sorted(one.alive))])
            if not moved and not any(world.step(one, dice) for one in waiters):
                ready = [one for one in waiters if one.alive and not one.runs]
                if not ready:
                    break
                running = [one for one in waiters if one.runs]
                assert running, f"{[one.run for one in ready]} wait for nobody"
                first = min(ready, key=lambda one: one.place)
                blockers = [lease["run"] for host in first.hosts for lease in world.taken(first, host)]
                assert set(blockers) <= {one.run for one in running}, "the first in line waits for those that run alone"
                world.kill(last := dice.choice(running), last.hosts)
        else:
            raise AssertionError("it does not come to rest")


def test_of_runs_for_the_same_gpu_the_first_in_line_goes_first_and_one_for_another_does_not_wait() -> None:
    def place(order: float) -> Any:
        return Waiter(int(order), {0: [0]}, 0, order)

    running, first, second = place(1.0), place(2.0), place(3.0)
    beside = Waiter(4, {0: [1]}, 0, 4.0)
    world, dice = World([running, first, second, beside]), random.Random(0)
    while any([world.step(one, dice) for one in (second, beside, first, running)]):  # noqa: C419 - each of them
        pass
    assert sorted(world.began) == ["run-1", "run-4"]
    world.kill(running, [0])
    while any([world.step(one, dice) for one in (second, first)]):  # noqa: C419
        pass
    assert world.began[2:] == ["run-2"]
