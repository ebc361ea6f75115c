"""Who has leased a host or its GPUs, and who is in whose way (docs/formats.md, "Leases").

Pure: a host decides by these functions, and a viewer foretells by them what the host decides.
"""

from __future__ import annotations

from typing import Iterable, List, Literal, NamedTuple, Optional, TypedDict

Kind = Literal["run", "hand"]
State = Literal["held", "waiting"]
LATEST = 1e11
"""Unix times and places in the line are earlier."""
PRIORITY = 100
"""The highest priority; the lowest is minus that."""


class LeaseText(TypedDict):
    """The content of a lease's file, as its owner has written it."""

    kind: Kind
    """A run's lasts as long as its supervisor; one by hand until its end, or until it is released."""
    state: State
    """`waiting`: a queued run, which has its place in the line but not the GPUs."""
    run: str
    node_rank: int
    gpus: Optional[List[int]]
    """None: the whole host; none of them: a run on the CPU."""
    alone: bool
    """Of a run on the CPU: whether it waits for other runs of the host."""
    since: float
    until: Optional[float]
    note: str
    by: str
    priority: int
    order: float
    """The place in the line: unix time, later than that of every run that was in line before it."""
    pid: int
    start_time: Optional[int]
    pid_namespace: str
    boot_id: str
    quota: Optional[int]
    """The most GPUs of this host that the run lets its user have in leases; None: any number."""
    warden_pid: Optional[int]
    """Of the same boot and namespace; it ends the run when the other process is killed."""
    warden_start_time: Optional[int]
    step: Optional[int]
    steps: Optional[int]


class Lease(LeaseText):
    """A lease that counts, with the user who owns its file: the text cannot say that."""

    user: str
    uid: int


class Wish(NamedTuple):
    """What somebody wants to use, `uid` on the host; `person` tells those apart who share an account, empty: nobody."""

    kind: Kind
    run: str
    gpus: Optional[List[int]]
    alone: bool
    uid: int
    person: str
    place: Optional["LinePlace"] = None
    """The place in the line; None: it does not wait, so everybody in line comes first."""
    quota: Optional[int] = None


class LinePlace(NamedTuple):
    """The place in the line, the smallest is the first."""

    before: int
    """Minus the priority."""
    order: float
    run: str


def place_of(lease: LeaseText) -> LinePlace:
    """The place of a waiting run."""
    return LinePlace(-lease["priority"], lease["order"], lease["run"])


def person(by: str) -> str:
    """The login name in `alice@laptop`."""
    return by.partition("@")[0]


def in_the_way(wish: Wish, leases: Iterable[Lease]) -> List[Lease]:
    """The leases that keep a wish from being granted, in the order given; its user's own by the quota, if no others.

    A run that waits keeps those behind it, and those not in line, from what it waits for, and nobody from anything
    else: one that needs other GPUs goes first, which delays nobody.
    """
    ahead = [lease for lease in leases if not _is_behind(lease, wish)]
    return [lease for lease in ahead if _collide(wish, lease)] or _over_quota(wish, ahead)


def by_quota(wish: Wish, taken: Iterable[Lease]) -> bool:
    """Whether leases that are in the way are so by the quota alone."""
    return wish.quota is not None and not any(_collide(wish, lease) for lease in taken)


def _over_quota(wish: Wish, ahead: Iterable[Lease]) -> List[Lease]:
    if wish.quota is None or not wish.gpus:
        return []
    own = own_leases(wish, ahead)
    used = set(wish.gpus).union(*(one["gpus"] or () for one in own))
    return own if len(used) > wish.quota or any(one["gpus"] is None for one in own) else []


def own_leases(wish: Wish, leases: Iterable[Lease]) -> List[Lease]:
    """Those of GPUs, or of the whole host, that its user has for something else."""
    others = [one for one in leases if not wish.run or one["run"] != wish.run]
    return [one for one in others if one["gpus"] != [] and _is_own(wish, one)]


def _is_own(wish: Wish, lease: Lease) -> bool:
    return wish.uid == lease["uid"] and wish.person in ("", person(lease["by"]))


def _is_behind(lease: Lease, wish: Wish) -> bool:
    return lease["state"] == "waiting" and wish.place is not None and wish.place < place_of(lease)


def _collide(wish: Wish, lease: Lease) -> bool:
    if wish.run and wish.run == lease["run"] and wish.uid == lease["uid"]:
        return False
    if "hand" in (wish.kind, lease["kind"]) and _is_own(wish, lease):
        return False
    return _overlap(wish.gpus, lease["gpus"]) or (wish.gpus == [] and lease["gpus"] == [] and wish.alone)


def _overlap(one: Optional[List[int]], other: Optional[List[int]]) -> bool:
    if one is None or other is None:
        return True
    return not set(one).isdisjoint(other)
