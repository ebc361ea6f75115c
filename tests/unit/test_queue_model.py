"""The queue as a model: interleavings of hosts, messages, ends and kills, by the functions that hosts decide with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from disttui.runner.node.gang.turn import Services, Turn, TurnOrder
from disttui.runner.protocol.leases import Lease, QueuePlace, Share, next_round, place_of, share, wish_of

_HOSTS, _GPUS = 3, 2


@dataclass(frozen=True)
class Uses:
    """What a run wants of one host."""

    gpus: list[int]
    count: int | None = None

    @property
    def number(self) -> int:
        return len(self.gpus) if self.count is None else self.count


class Waiter:
    """A queued run: its part on each host, and the messages on the way, which each host gets in their order."""

    def __init__(
        self,
        number: int,
        uses: dict[int, Uses],
        order: float,
        quota: int | None = None,
        user: int = 0,
        forged: tuple[int, float] | None = None,
    ) -> None:
        self.run = f"run-{number:03}"
        self.uses = uses
        self.order = order
        self.user = user
        self.forged = forged
        """The round and order that its user has written, whatever the others have."""
        self.hosts = sorted(uses)  # node rank n is the host of this number; all runs take them in this order
        self.turn = Turn(range(len(uses)))
        self.leases = {host: self._lease(host, quota) for host in self.hosts}
        self.quota = quota
        self.services = {host: Services(user) for host in self.hosts}
        self.told: dict[int, bool | None] = dict.fromkeys(self.hosts)
        self.up: list[tuple[str, int, bool]] = []
        self.down: list[TurnOrder] = []
        self.round: int | None = None
        self.arrived = False
        self.looks: int | None = None
        """The host that has written its lease as held, and not yet looked at all others."""
        self.alive = set(self.hosts)
        """Where its part lives; where one has died, the others end once they notice."""

    @property
    def runs(self) -> bool:
        return bool(self.alive) and self.turn.granted

    @property
    def place(self) -> QueuePlace:
        return place_of(self.leases[self.hosts[0]])

    def queue(self, round_number: int) -> None:
        """Arrive in a round."""
        self.arrived = True
        forged = self.forged or (round_number, self.order)
        for lease in self.leases.values():
            lease["round"], lease["order"] = forged

    def die(self, host: int) -> None:
        """The lease goes with its part."""
        self.alive.discard(host)
        self.looks = None if self.looks == host else self.looks

    def write_waiting(self, host: int) -> None:
        self.leases[host].update({"state": "waiting", "gpus": self.uses[host].gpus, "count": self.uses[host].count})
        self.told[host] = None

    def _lease(self, host: int, quota: int | None) -> Lease:
        return {
            "kind": "run", "state": "waiting", "run": self.run, "node_rank": 0, "gpus": self.uses[host].gpus,
            "count": self.uses[host].count, "alone": True, "since": 0.0, "until": None, "note": "", "by": "",
            "round": 0, "order": 1.0, "pid": 1, "start_time": 1, "pid_namespace": "", "boot_id": "", "quota": quota,
            "warden_pid": None, "warden_start_time": None, "step": None, "steps": None,
            "user": f"user-{self.user}", "uid": self.user,
        }  # fmt: skip


class World:
    """Hosts with their leases: the living runs' files."""

    def __init__(self, waiters: Sequence[Waiter]) -> None:
        self.waiters = list(waiters)
        self.began: list[str] = []
        self._shares: dict[tuple[str, int], Share] = {}

    def share(self, one: Waiter, host: int) -> Share:
        if (one.run, host) not in self._shares:
            found = self.leases(host)
            one.services[host].see(found)
            self._shares[one.run, host] = share(wish_of(one.leases[host]), found, one.services[host].least)
        return self._shares[one.run, host]

    def leases(self, host: int) -> list[Lease]:
        return [other.leases[host] for other in self.waiters if other.arrived and host in other.alive]

    def kill(self, one: Waiter, hosts: Sequence[int]) -> None:
        for host in hosts:
            one.die(host)
        self._shares.clear()

    def step(self, one: Waiter, dice: random.Random) -> bool:
        """One thing happens to a run: a host looks, or a message arrives; False: nothing is left to do for it."""
        if not one.alive:
            return False
        if not one.arrived:
            if one.round is None:  # others may come or begin before it is written
                one.round = next_round((one.user, self.leases(host)) for host in one.hosts)
            else:
                one.queue(one.round)
                self._shares.clear()
            return True
        todo = [
            ("look", host)
            for host in sorted(one.alive)
            if one.leases[host]["state"] == "waiting" and one.told[host] != (not self.share(one, host).taken)
        ]
        todo += [("up", 0)] * bool(one.up) + [("down", 0)] * bool(one.down)
        todo += [("taken?", one.looks)] if one.looks is not None else []
        todo += [("end", 0)] if len(one.alive) < len(one.hosts) else []
        if not todo:
            return False
        kind, host = dice.choice(todo)
        if kind == "look":
            one.told[host] = not self.share(one, host).taken
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

    def settle(self, dice: random.Random) -> None:
        """Go on until nothing is left to do."""
        while any([self.step(one, dice) for one in dice.sample(self.waiters, len(self.waiters))]):  # noqa: C419 - each
            pass

    def _hear(self, one: Waiter, kind: str, host: int, yes: bool) -> None:
        node, before = one.hosts.index(host), one.turn.granted
        one.down += one.turn.hear(node, yes, "x") if kind == "room" else one.turn.took(node, yes)
        if one.turn.granted and not before:
            self.began.append(one.run)
            self.check()

    def _obey(self, one: Waiter, order: TurnOrder) -> None:
        host = one.hosts[order.node]
        if host not in one.alive:
            return
        mine = self.share(one, host)
        if not order.take:
            one.write_waiting(host)
        elif mine.taken:
            one.told[host] = None
            one.up.append(("took", host, False))
        else:
            one.leases[host].update({"state": "held", "gpus": mine.gpus, "count": None})
            one.looks = host
        self._shares.clear()

    def _look_at_all(self, one: Waiter, host: int) -> None:
        """Without a lock: others may have written theirs since this run has."""
        one.looks, done = None, not self.share(one, host).taken
        one.up.append(("took", host, done))
        if not done:
            one.write_waiting(host)
        self._shares.clear()

    def check(self) -> None:
        """No GPU has two runs that train."""
        for host in range(_HOSTS):
            here = [one for one in self.waiters if one.runs and host in one.alive]
            used = [gpu for one in here for gpu in one.leases[host]["gpus"] or ()]
            assert len(used) == len(set(used)), f"host {host}: {used}"
            for user in range(3):
                own = [one for one in here if one.user == user]
                assert all(sum(one.uses[host].number for one in own) <= (one.quota or _GPUS) for one in own)


_listed = st.lists(st.integers(0, _GPUS - 1), min_size=1, max_size=_GPUS, unique=True).map(Uses)
_any = st.integers(1, _GPUS).map(lambda count: Uses(list(range(_GPUS)), count))
_uses = st.dictionaries(st.integers(0, _HOSTS - 1), _listed | _any, min_size=1, max_size=_HOSTS)
_forged = st.tuples(st.integers(0, 2) | st.just(999_999), st.sampled_from([0.001, 1.0, 9e10]))


def _within(uses: Uses, quota: int | None) -> Uses:
    if uses.count is None:
        return Uses(uses.gpus[:quota])
    return Uses(uses.gpus, min(uses.count, quota or _GPUS))


@settings(max_examples=200, deadline=None)
@given(
    uses=st.lists(_uses, min_size=2, max_size=4),
    users=st.lists(st.integers(0, 2), min_size=5),
    forged=st.lists(st.none() | _forged, min_size=5),
    seed=st.integers(),
    quota=st.sampled_from([None, 1, 2]),
)
def test_no_gpu_is_booked_twice_and_no_run_starves(
    uses: list[dict[int, Uses]], users: list[int], forged: list[tuple[int, float] | None], seed: int, quota: int | None
) -> None:
    """Fifty interleavings of each of 200 sets of runs, with ends and kills at any moment, of one host's part too.

    User 2 writes any place into the leases of their runs, the same on all hosts.
    """
    for turn in range(50):
        dice = random.Random(seed + turn)
        uses = [{host: _within(gpus, quota) for host, gpus in one.items()} for one in uses]
        waiters = [
            Waiter(n, one, dice.uniform(1, 3600), quota, users[n], forged[n] if users[n] == 2 else None)
            for n, one in enumerate(uses)
        ]
        world = World(waiters)
        for _ in range(3000):
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
                blockers = [lease["run"] for host in first.hosts for lease in world.share(first, host).taken]
                assert set(blockers) <= {one.run for one in running}, "the first in line waits for those that run alone"
                world.kill(last := dice.choice(running), last.hosts)
        else:
            raise AssertionError("it does not come to rest")


def _run_all(world: World, dice: random.Random) -> list[str]:
    """End whatever runs, again and again; returns the runs in the order of their starts."""
    world.settle(dice)
    while running := [one for one in world.waiters if one.runs]:
        world.kill(running[0], running[0].hosts)
        world.settle(dice)
    return world.began


def _queue(world: World, dice: random.Random, runs: Sequence[Waiter]) -> None:
    for one in runs:
        world.waiters.append(one)
        world.settle(dice)


def test_a_single_run_starts_second_after_fifty_of_another_user() -> None:
    """Three users queue 50, 1 and 5 runs, one after the other, for the one GPU of a host."""
    dice, world = random.Random(0), World([])
    runs = [Waiter(n, {0: Uses([0])}, 1.0 + n, user=user) for n, user in enumerate([0] * 50 + [1] + [2] * 5)]
    _queue(world, dice, runs)
    users = [runs[int(run.removeprefix("run-"))].user for run in _run_all(world, dice)]
    assert users[:12] == [0, 1, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0]
    assert users[12:] == [0] * 44


def test_users_take_turns_on_several_hosts() -> None:
    """The single run wants any GPU of two hosts on which another user has queued 25 runs each, and 5 on both."""
    dice, world = random.Random(1), World([])
    wants = [{0: Uses([0, 1], 1)}, {1: Uses([0, 1], 2)}, {0: Uses([0, 1], 1), 1: Uses([0, 1], 1)}]
    many = [Waiter(n, dict(wants[n % 3]), 1.0 + n) for n in range(55)]
    _queue(world, dice, many)
    before = len(world.began)
    _queue(world, dice, [Waiter(60, {0: Uses([0, 1], 1), 1: Uses([0, 1], 1)}, 100.0, user=1)])
    began = _run_all(world, dice)
    assert len(began) == 56
    assert began.index("run-060") - before <= 2, "it waits for the runs that run, and for those that fit beside them"


def test_forged_places_pass_a_waiting_run_once() -> None:
    """One run at a time in the earliest round, queued anew as soon as the last has begun."""
    mine = Waiter(0, {0: Uses([0])}, 5.0)
    mine.queue(25)
    passed = []
    for n in range(1, 6):
        theirs = Waiter(n, {0: Uses([0])}, 1.0, user=2, forged=(0, 0.001))
        theirs.queue(0)
        world = World([mine, theirs])
        passed.append(bool(world.share(mine, 0).taken))
        theirs.leases[0]["state"] = "held"
        world.kill(mine, [])
        assert world.share(mine, 0).taken, "it has the GPU"
    assert passed == [True, False, False, False, False]


def test_a_forged_round_far_ahead_leaves_others_their_turns() -> None:
    """It is held, and all who come now take it for the present one; who came before stays in an early one."""
    dice, world = random.Random(3), World([])
    _queue(world, dice, [Waiter(0, {0: Uses([1])}, 1.0, user=2, forged=(999_999, 1.0))])
    _queue(world, dice, [Waiter(n, {0: Uses([0])}, 2.0 + n, user=n % 2) for n in range(1, 13)])
    began = [int(run.removeprefix("run-")) % 2 for run in _run_all(world, dice)[1:]]
    assert began == [1, 0] * 6, world.began


def test_run_for_another_gpu_does_not_wait_for_the_queue_head() -> None:
    running, first, second = (Waiter(n, {0: Uses([0])}, float(n)) for n in (1, 2, 3))
    world, dice = World([]), random.Random(0)
    _queue(world, dice, [running, first, second, Waiter(4, {0: Uses([1])}, 4.0)])
    assert sorted(world.began) == ["run-001", "run-004"]
    world.kill(running, [0])
    world.settle(dice)
    assert world.began[2:] == ["run-002"]


def test_a_run_takes_any_gpu_that_is_free_at_its_turn() -> None:
    dice, world = random.Random(0), World([])
    holders = [Waiter(n, {0: Uses([n])}, 1.0 + n) for n in range(2)]
    _queue(world, dice, holders)
    any_one, listed = Waiter(5, {0: Uses([0, 1], 1)}, 5.0, user=1), Waiter(6, {0: Uses([1])}, 6.0, user=2)
    _queue(world, dice, [any_one, listed])
    world.kill(holders[1], [0])
    world.settle(dice)
    assert any_one.leases[0]["gpus"] == [1] and not listed.runs
    world.kill(holders[0], [0])
    world.settle(dice)
    assert not listed.runs, "GPU 1 is not free"
    world.kill(any_one, [0])
    world.settle(dice)
    assert listed.runs
