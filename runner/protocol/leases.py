"""Who has leased a host or its GPUs, and who waits for whom (docs/formats.md, "Leases").

No I/O: a host decides with these functions, and a viewer uses them to predict what the host will decide.
"""

from __future__ import annotations

import unicodedata
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Literal,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypedDict,
    cast,
)

from .limits import MOST_GPUS
from .names import RUN, short

Kind = Literal["run", "hand"]
State = Literal["held", "waiting"]
LATEST = 1e11
"""Upper bound of unix times and of places in the queue."""
MOST_ROUNDS = 1_000_000
"""Upper bound of the numbers of rounds of the queue."""
GPU_NUMBERS = 1024
"""Upper bound of the numbers of GPUs."""
MOST_NAMED = 16
"""Most leases that are named as in the way of a request."""


class LeaseText(TypedDict):
    """The content of a lease's file, as its owner wrote it."""

    kind: Kind
    """A run's lease lasts as long as its supervisor; a manual one until its end, or until it is released."""
    state: State
    """`waiting`: a queued run, which has its place in the queue but not the GPUs."""
    run: str
    node_rank: int
    gpus: Optional[List[int]]
    """None: the whole host; an empty list: a run on the CPU."""
    count: Optional[int]
    """How many of `gpus` a waiting run takes; None: all of them."""
    alone: bool
    """Whether a run on the CPU waits for other runs of the host."""
    since: float
    until: Optional[float]
    note: str
    by: str
    round: int
    """The round of a queued run: each user has one run per round."""
    order: float
    """The place within the round: the unix time when it was queued; 0 if it was not queued."""
    pid: int
    start_time: Optional[int]
    pid_namespace: str
    boot_id: str
    quota: Optional[int]
    """The most GPUs of this host that the run allows its user in leases; None: any number."""
    warden_pid: Optional[int]
    """The process that ends the run if the other is killed, of the same boot and namespace."""
    warden_start_time: Optional[int]
    step: Optional[int]
    steps: Optional[int]


class Lease(LeaseText):
    """A valid lease with the user who owns its file, which the text cannot prove."""

    user: str
    uid: int


class Wish(NamedTuple):
    """What a user (`uid` on the host) requests; `person` distinguishes people who share an account, or is ""."""

    kind: Kind
    run: str
    gpus: Optional[List[int]]
    alone: bool
    uid: int
    person: str
    place: Optional["QueuePlace"] = None
    """The place in the queue; None: it is not queued, so every queued run comes first."""
    quota: Optional[int] = None
    how_many: Optional[int] = None
    """How many of `gpus`; None: all of them."""


class QueuePlace(NamedTuple):
    """The place in the queue as written by the run's owner, the same on all its hosts; the smallest is first."""

    round: int
    order: float
    run: str


class Share(NamedTuple):
    """What a request gets, or who is in its way."""

    gpus: Optional[List[int]]
    """The GPUs that it gets; None: the whole host."""
    taken: List[Lease]
    """The first of the leases that keep it from being granted; empty if it is granted."""
    by_quota: bool = False
    """Whether these are the user's own leases, in the way only because of the quota."""


LeastRound = Callable[[int], int]
"""User id → the earliest round of their first waiting run, whatever its lease says."""


def read_text(found: object) -> Optional[LeaseText]:
    """A lease's text with every field checked, None for what no version of disttui writes."""
    if not isinstance(found, dict):
        return None
    text = {name: found.get(name) for name in LeaseText.__annotations__}
    right = (
        text["kind"] in ("run", "hand")
        and text["state"] in ("held", "waiting")
        and isinstance(text["run"], str)
        and (text["run"] == "" if text["kind"] == "hand" else bool(RUN.fullmatch(text["run"])))
        and _are_gpus(text["gpus"])
        and isinstance(text["alone"], bool)
        and _is_time(text["since"])
        and _is_time(text["order"])
        and (text["state"] == "held" or text["order"] != 0)
        and (text["until"] is None or _is_time(text["until"]))
        and all(
            isinstance(value, str) and len(value) <= 200 and _is_printable(value)  # our own messages contain it
            for value in (text["note"], text["by"], text["boot_id"], text["pid_namespace"])
        )
        and all(is_whole(text[name], 1 << 31) for name in ("node_rank", "pid"))
        and is_whole(text["round"], MOST_ROUNDS)
        and (text["count"] is None or is_whole(text["count"], MOST_GPUS + 1))
        and (text["warden_pid"] is None or is_whole(text["warden_pid"], 1 << 31))
        and all(
            text[name] is None or is_whole(text[name], 1 << 53)
            for name in ("start_time", "warden_start_time", "quota", "step", "steps")
        )
    )
    return cast("LeaseText", text) if right else None


def _is_printable(text: str) -> bool:
    """Whether a text is printable in some version of Unicode: its writer's Python may know a newer one."""
    return text.isprintable() or all(one.isprintable() or unicodedata.category(one) == "Cn" for one in text)


def _are_gpus(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and len(value) <= MOST_GPUS and all(is_whole(one, GPU_NUMBERS) for one in value)


def is_whole(value: Any, below: int) -> bool:
    """Whether a value is an integer from 0 to below a bound."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < LATEST


def place_of(lease: LeaseText) -> QueuePlace:
    """The place of a queued run."""
    return QueuePlace(lease["round"], lease["order"], lease["run"])


def person(by: str) -> str:
    """The login name in `alice@laptop`."""
    return by.partition("@")[0]


def next_round(hosts: Iterable[Tuple[int, Sequence[Lease]]]) -> int:
    """The round for a run that a user queues now: after the user's other runs, and not before the current round.

    Args:
        hosts: The user's id on each host of the run, and the leases there.
    """
    present, own = MOST_ROUNDS - 1, 0
    for uid, leases in hosts:
        runs = [one for one in leases if one["order"]]
        started = max((one["round"] for one in runs if one["state"] == "held"), default=0)
        present = min(present, started, *(one["round"] for one in runs if one["state"] == "waiting"))
        own = max([own, *(one["round"] + 1 for one in runs if one["uid"] == uid)])
    return min(max(present, own), MOST_ROUNDS - 1)


def in_order(leases: Iterable[Lease], least: LeastRound = lambda uid: 0) -> List[Tuple[QueuePlace, Lease]]:
    """The waiting leases in the order of the queue, with their effective places.

    A round has one run of each user: further ones, and those in a round before `least`, come last in a later round.
    """
    following: Dict[int, int] = {}
    places: Dict[Tuple[int, str], QueuePlace] = {}
    found = []
    for one in sorted((one for one in leases if one["state"] == "waiting"), key=place_of):
        uid, place = one["uid"], place_of(one)
        if (uid, place.run) not in places:  # otherwise a run with several node ranks on this host
            earliest = following.get(uid, least(uid))
            late = place if place.round >= earliest else QueuePlace(earliest, LATEST, place.run)
            places[uid, place.run], following[uid] = late, late.round + 1
        found.append((places[uid, place.run], one))
    return sorted(found, key=lambda item: item[0])


def share(wish: Wish, leases: Sequence[Lease], least: LeastRound = lambda uid: 0) -> Share:
    """What a request gets. A waiting run keeps what it waits for from all behind it, and from those not queued.

    It does not delay others: a run that needs other GPUs goes first. A user's own places are always the written ones,
    and those of others are never earlier: so one of the runs that wait for each other is first on all hosts.
    """
    leases = [one for one in leases if not _is_same(wish, one)]
    others = in_order([one for one in leases if one["uid"] != wish.uid], least)
    own = [(place_of(one), one) for one in leases if one["uid"] == wish.uid and one["state"] == "waiting"]
    kept = _Claims(leases)
    for place, one in sorted(others + own, key=lambda item: item[0]):
        if wish.place is None or place <= wish.place:
            kept.add(one, kept.pick(wish_of(one)))
    return kept.share(wish)


def shares(leases: Sequence[Lease]) -> List[Tuple[QueuePlace, Lease, Share]]:
    """The waiting leases in the order of the queue, each with what it gets or waits for."""
    kept, found = _Claims(leases), []
    for place, one in in_order(leases):
        mine = kept.share(wish_of(one))
        kept.add(one, mine.gpus)
        found.append((place, one, mine))
    return found


def in_the_way(wish: Wish, leases: Sequence[Lease]) -> List[Lease]:
    """The first leases that keep a request from being granted; if there are no others, the user's own, by the quota."""
    return share(wish, leases).taken


def own_leases(wish: Wish, leases: Iterable[Lease]) -> List[Lease]:
    """The user's leases of other things: GPUs or the whole host; for a request of CPUs, runs on the CPU."""
    return [one for one in leases if _counts_with(wish, one)]


def wish_of(lease: Lease) -> Wish:
    """The request that a lease makes."""
    place = place_of(lease) if lease["order"] else None
    return Wish(
        lease["kind"], lease["run"], lease["gpus"], lease["alone"], lease["uid"], person(lease["by"]),
        place, lease["quota"], lease["count"],
    )  # fmt: skip


class _Claims:
    """What leases claim: those that are held, and those that are added."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        self._all: List[Tuple[Lease, Optional[List[int]]]] = []
        self._of: Dict[int, List[Lease]] = {}
        for one in leases:
            if one["state"] == "held":
                self.add(one, one["gpus"])

    def add(self, lease: Lease, gpus: Optional[List[int]]) -> None:
        self._all.append((lease, gpus))
        for gpu in gpus or ():
            self._of.setdefault(gpu, []).append(lease)

    def pick(self, wish: Wish) -> Optional[List[int]]:
        """The GPUs that a request gets: as many as are free if it accepts any. The user's own come first."""
        if wish.gpus is None or wish.how_many is None:
            return wish.gpus
        free = [gpu for gpu in wish.gpus if not any(_excludes(wish, one) for one in self._of.get(gpu, ()))]
        free.sort(key=lambda gpu: (not any(_is_own(wish, one) for one in self._of.get(gpu, ())), gpu))
        return sorted(free[: wish.how_many])

    def share(self, wish: Wish) -> Share:
        gpus = self.pick(wish)
        taken = _first(one for one in self._contenders(wish, gpus) if _excludes(wish, one))
        return Share(gpus, taken) if taken else Share(gpus, own := self._over_quota(wish, gpus), bool(own))

    def _contenders(self, wish: Wish, gpus: Optional[List[int]]) -> Iterator[Lease]:
        """The leases that may be in the way of a request that would get these GPUs."""
        for one, which in self._all:
            if wish.gpus is None or which is None or (wish.gpus == [] and which == [] and wish.alone):
                yield one
        enough = wish.how_many is not None and len(gpus or ()) >= wish.how_many
        for gpu in () if enough else wish.gpus or ():
            yield from self._of.get(gpu, ())

    def _over_quota(self, wish: Wish, gpus: Optional[List[int]]) -> List[Lease]:
        """The leases of the same user that would make a request exceed the quota."""
        if wish.quota is None or gpus is None:
            return []
        own = [(one, which) for one, which in self._all if _counts_with(wish, one)]
        if gpus:
            is_over = any(which is None for _, which in own)
            is_over = is_over or len(set(gpus).union(*(which or () for _, which in own))) > wish.quota
        else:
            is_over = len({one["run"] for one, _ in own}) >= wish.quota
        return _first(one for one, _ in own) if is_over else []


def _first(leases: Iterable[Lease]) -> List[Lease]:
    found: Dict[int, Lease] = {}
    for one in leases:
        found[id(one)] = one
        if len(found) == MOST_NAMED:
            break
    return list(found.values())


def _is_own(wish: Wish, lease: Lease) -> bool:
    return wish.uid == lease["uid"] and wish.person in ("", person(lease["by"]))


def _is_same(wish: Wish, lease: Lease) -> bool:
    return bool(wish.run) and wish.run == lease["run"] and wish.uid == lease["uid"]


def _counts_with(wish: Wish, lease: Lease) -> bool:
    """Whether a lease and a request share the quota of their user."""
    if _is_same(wish, lease) or not _is_own(wish, lease):
        return False
    return lease["gpus"] != [] if wish.gpus != [] else lease["gpus"] == [] and lease["kind"] == "run"


def _excludes(wish: Wish, lease: Lease) -> bool:
    """Whether a lease makes what it names unavailable to this request."""
    return not _is_same(wish, lease) and not ("hand" in (wish.kind, lease["kind"]) and _is_own(wish, lease))


def holder(lease: Lease, now: float) -> str:
    """The holder of a lease, as in `alice's llama-7f3a holds GPUs 0, 1, 41 % done, about 3 h left`."""
    user, what = lease["user"], what_of(lease)
    if lease["state"] == "waiting":
        return f"{user}'s {short(lease['run'])} is queued before it for {what}"
    if lease["kind"] == "run":
        return f"{user}'s {short(lease['run'])} holds {what}{progress(lease, now)}"
    note = f" ({lease['note']})" if lease["note"] else ""
    return f"{user} reserved {what} {_end(lease, now)}{note}"


def who_has(lease: Lease, now: float) -> str:
    """A lease's owner and remaining time, as in `alice's llama-7f3a, 41 % done, about 3 h left`."""
    user = lease["user"]
    if lease["state"] == "waiting":
        return f"{user}'s {short(lease['run'])}, queued before it"
    if lease["kind"] == "run":
        return f"{user}'s {short(lease['run'])}{progress(lease, now)}"
    return f"{user}'s reservation, {_end(lease, now)}" + (f": {lease['note']}" if lease["note"] else "")


def what_of(lease: LeaseText) -> str:
    """`GPUs 0, 1`, `any 2 of 4 GPUs`, `the whole host` or `CPUs`."""
    gpus, count = lease["gpus"], lease["count"]
    if gpus is None:
        return "the whole host"
    if count is not None:
        return f"any {count} of {len(gpus)} GPUs" if count < len(gpus) else f"{count} GPU{'s' * (count != 1)}"
    return f"GPU{'s' * (len(gpus) > 1)} {', '.join(map(str, gpus))}" if gpus else "CPUs"


def progress(lease: Lease, now: float) -> str:
    """The progress written by the run's owner, as in `, 41 % done, about 3 h left`; "" if unknown."""
    step, steps = lease["step"], lease["steps"]
    if not step or not steps or step > steps:
        return ""
    left = max(0.0, now - lease["since"]) * (steps - step) / step
    return f", {100 * step // steps} % done, about {span(left)} left"


def span(seconds: float) -> str:
    """An approximate duration: `12 s`, `45 min`, `3 h`, `2 d`; `years` for an impossible one."""
    # Longest duration shown exactly, in seconds: hosts, other users and scripts provide the figures
    if seconds >= 2 * 365 * 86400.0:
        return "years"
    if seconds < 60:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = round(minutes / 60)
    return f"{hours} h" if hours < 48 else f"{round(hours / 24)} d"


def _end(lease: Lease, now: float) -> str:
    until = lease["until"]
    return "until released" if until is None else f"for {span(max(0.0, until - now))} more"
