"""Leases of hosts and their GPUs: lists, takes and releases them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from disttui.runner.api.listing import Place, list_runs, place_of_host
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, HostError, InputError
from disttui.runner.formatting import number
from disttui.runner.hosts.facts import Gpu, read_gpus, read_leases
from disttui.runner.hosts.survey import side_by_side
from disttui.runner.ids import short
from disttui.runner.protocol.leases import Lease, QueuePlace, place_of, shares
from disttui.runner.protocol.requests import Op
from disttui.runner.runs.places import Destination, chosen
from disttui.runner.runs.registry import KnownRun, known_runs, whoami
from disttui.runner.runs.remote import Reached
from disttui.runner.runs.summary import RunStatus
from disttui.runner.untrusted.records import text, whole

PATIENCE = 30.0
"""Seconds that a host may take, including its driver."""
_LONG = 1000


@dataclass(frozen=True)
class HostLeases:
    """Who uses a host: by lease, and by the processes on its GPUs."""

    host: str
    leases: tuple[Lease, ...]
    """Leases, oldest first."""
    gpus: tuple[Gpu, ...]
    problem: str
    """Why this is incomplete; empty: it is complete."""
    time: float
    """Unix time of the host."""
    uid: int
    """This user's on the host."""


@dataclass(frozen=True)
class WaitingRun:
    """A queued run, as its hosts report it."""

    run: str
    user: str
    since: float
    """Unix time of the first of its hosts."""
    hosts: tuple[WaitingPart, ...]


@dataclass(frozen=True)
class WaitingPart:
    """What a queued run waits for on one host."""

    host: str
    wanted: Lease
    ahead: tuple[Lease, ...]
    """Leases that it waits for; empty: this host has room."""
    time: float
    """Unix time of the host."""


@dataclass(frozen=True)
class Moved:
    """The place of a queued run in the queue of its hosts."""

    ahead: int
    """Number of runs of all users before it."""
    traded: str
    """The user's run with which it traded places; empty: it already had that place."""


@dataclass(frozen=True)
class HostsInUse:
    """The answers of hosts, and why others could not be asked."""

    hosts: tuple[HostLeases, ...]
    problems: tuple[DisttuiError, ...]
    unreached: tuple[str, ...]
    """Hosts that only profiles name, and that could not be asked."""
    places: frozenset[Place]
    """Places of the hosts that have answered."""


def who(viewer: Viewer, hosts: Sequence[str] = (), *, gpus: bool = True) -> HostsInUse:
    """Ask hosts who uses them.

    Args:
        hosts: Names of hosts, or of one profile; none: all hosts of runs that are known here, of the user's and the
            team's profiles, and this machine.
        gpus: Also ask the driver which processes compute on which GPU.

    Raises:
        InputError: A name is not a host.
    """

    def one(place: Destination) -> HostLeases | DisttuiError:
        try:
            return _read(place.name, _ask(viewer, place, "leases", gpus=gpus))
        except ValueError:
            return HostError(place.name, "its answer is malformed", "Check which disttui version runs there.")
        except DisttuiError as error:
            return error

    asked = chosen(hosts, None, viewer.environ)
    pairs = list(zip(asked, side_by_side(one, asked), strict=True))
    failed = [(place, answer) for place, answer in pairs if isinstance(answer, DisttuiError)]
    return HostsInUse(
        tuple(answer for _, answer in pairs if isinstance(answer, HostLeases)),
        tuple(error for place, error in failed if place.named),
        tuple(place.name for place, _ in failed if not place.named),
        frozenset(place_of_host(place.host) for place, answer in pairs if isinstance(answer, HostLeases)),
    )


def queue(hosts: Sequence[HostLeases]) -> tuple[WaitingRun, ...]:
    """The queued runs of hosts that `who` has asked, in order."""
    places: dict[tuple[str, str], QueuePlace] = {}
    found: dict[tuple[str, str], list[WaitingPart]] = {}
    for host in hosts:
        for place, one, share in shares(host.leases):
            which = one["run"], one["user"]
            places[which] = max(place, places.get(which, place))
            found.setdefault(which, []).append(WaitingPart(host.host, one, tuple(share.taken), host.time))
    return tuple(
        WaitingRun(run, user, parts[0].wanted["since"], tuple(parts))
        for (run, user), parts in sorted(found.items(), key=lambda item: (places[item[0]], item[0]))
    )


def dropped(viewer: Viewer, places: Collection[Place]) -> tuple[RunStatus, ...]:
    """Known runs that were queued on hosts at these places and ended before their turn.

    Those whose profile was run or queued again since then are left out.
    """
    rows = list_runs(viewer, at=places).rows
    known = list_runs(viewer, local=True).rows  # also those of other hosts, which are not asked
    return tuple(
        row
        for row in rows
        if row.get("dropped")
        and not any(
            other["name"] == row["name"] and other["started"] > row["started"] and not other.get("dropped")
            for other in known
        )
    )


def move(viewer: Viewer, run: KnownRun, to: Literal["first", "last"]) -> Moved:
    """Trade a queued run's place with the user's first or last.

    Runs of other users keep their places.

    Raises:
        InputError: It is not queued, or the other run was not started from here.
        DisttuiError: A host cannot be reached.
    """
    with viewer.reach(run) as reached:
        hosts = _leases_of(run, reached)
        waiting = [one for host in hosts for one in host.leases if (one["state"], one["uid"]) == ("waiting", host.uid)]
        own = {one["run"]: place_of(one) for one in waiting}
        if run.run not in own:
            raise InputError(f"{short(run.run)} is not queued", "See disttui lease queue, and disttui ps.")
        other = (min if to == "first" else max)(own, key=lambda one: own[one])
        if other != run.run:
            _place(viewer, other, own[run.run])
            _move(reached, run, own[other])
        waiting = [one for host in hosts for one in host.leases if one["state"] == "waiting"]
    ahead = {one["run"] for one in waiting if place_of(one) < own[other]} - {run.run}
    return Moved(len(ahead), other if other != run.run else "")


def _place(viewer: Viewer, run: str, place: QueuePlace) -> None:
    """Give another of the user's runs this place in the queue. Raises DisttuiError."""
    known = next((one for one in known_runs(viewer.environ)[0] if one.run == run), None)
    if known is None:
        raise InputError(
            f"that place belongs to your run {short(run)}, which was started elsewhere",
            "Move it from the machine that started it.",
        )
    with viewer.reach(known) as reached:
        _move(reached, known, place)


def _move(reached: Reached, run: KnownRun, place: QueuePlace) -> None:
    reached.refuse_some()
    answer = reached.ask("move", [0], **run.request(), round=place.round, order=place.order)[0]
    if isinstance(answer, DisttuiError):
        raise answer


def _leases_of(run: KnownRun, reached: Reached) -> list[HostLeases]:
    """The leases of all hosts of a run. Raises DisttuiError."""
    reached.refuse_some()
    hosts = []
    for node, answer in reached.ask("leases", gpus=False).items():
        if isinstance(answer, DisttuiError):
            raise answer
        hosts.append(_read(run.hosts[node].name, answer))
    return hosts


def lease(
    viewer: Viewer, hosts: Sequence[str], gpus: Sequence[int] | None, *, seconds: float | None, note: str = ""
) -> tuple[str, ...]:
    """Lease all of these hosts by hand, or none. Returns their names.

    Args:
        gpus: The GPUs of each; None: the whole host.
        seconds: How long; None: until it is released.

    Raises:
        InputError: A name is not a host.
        HostError: Others have it, or a host cannot be reached.
    """
    done: list[tuple[Destination, str]] = []
    places = chosen(hosts, None, viewer.environ)
    try:
        for place in sorted(places, key=lambda place: place.name):
            made = _ask(viewer, place, "lease", gpus=gpus, seconds=seconds, note=note, by=whoami())
            done.append((place, str(made.get("lease"))))
    except BaseException:
        for place, name in done:  # only the new leases, not earlier ones of this user
            with suppress(DisttuiError):
                _ask(viewer, place, "release", lease=name)
        raise
    return tuple(place.name for place in places)


def release(
    viewer: Viewer, hosts: Sequence[str], gpus: Sequence[int] | None = None
) -> Mapping[str, tuple[Lease, ...] | DisttuiError]:
    """Release this user's manual leases; returns them by host, or why the host could not be asked.

    Args:
        gpus: Only leases of any of these; None: all.

    Raises:
        InputError: A name is not a host.
    """

    def one(place: Destination) -> tuple[Lease, ...] | DisttuiError:
        try:
            return read_leases(_ask(viewer, place, "release", gpus=gpus).get("leases"))
        except DisttuiError as error:
            return error

    places = chosen(hosts, None, viewer.environ)
    return dict(zip((place.name for place in places), side_by_side(one, places), strict=True))


def _ask(viewer: Viewer, place: Destination, op: Op, **request: object) -> Mapping[str, object]:
    answer: Mapping[str, object] = viewer.ask(place.host, op, place.ssh_config, timeout=PATIENCE, **request)
    return answer


def _read(host: str, answer: Mapping[str, object]) -> HostLeases:
    return HostLeases(
        host=host,
        leases=read_leases(answer.get("leases")),
        gpus=read_gpus(answer),
        problem=text(answer.get("problem"), _LONG),
        time=number(answer.get("time")) or 0.0,
        uid=whole(answer.get("uid")) or 0,
    )
