"""Leases of hosts and their GPUs: who uses what, taken and released by hand."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from runner.api.listing import Place, RunStatus, list_runs, place_of_host
from runner.api.viewer import Viewer
from runner.errors import DisttuiError, HostError, InputError
from runner.formatting import number
from runner.hosts.facts import Gpu, read_gpus
from runner.hosts.leases import read_leases
from runner.hosts.survey import side_by_side
from runner.ids import short
from runner.protocol.leases import LATEST, Lease, LinePlace, Wish, in_the_way, person, place_of
from runner.runs.places import Destination, chosen
from runner.runs.registry import KnownRun, whoami
from runner.untrusted.bounded import text, whole

PATIENCE = 30.0
"""Seconds that a host may take, its driver included."""
_LONG = 1000
_MOST_AHEAD = 16
_APART = 0.001
"""Seconds between two places in the line."""


@dataclass(frozen=True)
class HostLeases:
    """Who uses a host: by lease, and by the processes on its GPUs."""

    host: str
    leases: tuple[Lease, ...]
    """The oldest first."""
    gpus: tuple[Gpu, ...]
    problem: str
    """What makes this incomplete; empty: nothing."""
    time: float
    """Unix time of the host."""
    uid: int
    """This user's on the host."""


@dataclass(frozen=True)
class WaitingRun:
    """A queued run, as its hosts tell."""

    run: str
    user: str
    priority: int
    since: float
    """Unix time of the first of its hosts that was asked."""
    hosts: tuple[WaitingPart, ...]


@dataclass(frozen=True)
class WaitingPart:
    """What a queued run waits for on one host."""

    host: str
    wanted: Lease
    ahead: tuple[Lease, ...]
    """Who has it, or is to have it before, the first of them; none: there is room for it here."""
    time: float
    """Unix time of the host."""


@dataclass(frozen=True)
class Moved:
    """The place of a queued run among all that wait on its hosts."""

    place: LinePlace
    changed: bool
    """Whether it had another one before."""
    ahead: int
    """The runs before it."""
    behind: int


@dataclass(frozen=True)
class HostsInUse:
    """The answers of hosts, and why others could not be asked."""

    hosts: tuple[HostLeases, ...]
    problems: tuple[DisttuiError, ...]
    places: frozenset[Place]
    """Of the hosts that have answered."""


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
            link = viewer.open_link(place.host, place.ssh_config)
            try:
                return _read(place.name, link.request("leases", timeout=PATIENCE, gpus=gpus))
            except ValueError:
                return HostError(place.name, "its answer is malformed", "See whether another version answers there.")
            finally:
                link.close()
        except DisttuiError as error:
            return error

    asked = chosen(hosts, None, viewer.environ)
    answers = side_by_side(one, asked)
    found = tuple(answer for answer in answers if isinstance(answer, HostLeases))
    places = [
        place_of_host(place.host)
        for place, answer in zip(asked, answers, strict=True)
        if not isinstance(answer, DisttuiError)
    ]
    problems = tuple(answer for answer in answers if isinstance(answer, DisttuiError))
    return HostsInUse(found, problems, frozenset(places))


def queue(hosts: Sequence[HostLeases]) -> tuple[WaitingRun, ...]:
    """The queued runs of hosts that `who` has asked, in their order."""
    found: dict[tuple[LinePlace, str], list[WaitingPart]] = {}
    for host in hosts:
        for one in host.leases:
            if one["state"] == "waiting":
                place = place_of(one)
                by = person(one["by"])
                wish = Wish("run", one["run"], one["gpus"], one["alone"], one["uid"], by, place, one["quota"])
                part = WaitingPart(host.host, one, tuple(in_the_way(wish, host.leases)[:_MOST_AHEAD]), host.time)
                found.setdefault((place, one["user"]), []).append(part)
    return tuple(
        WaitingRun(place.run, user, -place.before, parts[0].wanted["since"], tuple(parts))
        for (place, user), parts in sorted(found.items())
    )


def dropped(viewer: Viewer, places: Collection[Place]) -> tuple[RunStatus, ...]:
    """The runs that are known here, were queued on hosts at any of these places, and ended there before their turn.

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


def move(
    viewer: Viewer, run: KnownRun, *, to: Literal["first", "last"] | None = None, priority: int | None = None
) -> Moved:
    """Give a queued run another place in the line of its hosts.

    Args:
        to: Before or behind all that wait there, by the priority of these where its own does not suffice.
        priority: The priority, -100 to 100; where `to` is not given.

    Raises:
        InputError: It is not in line.
        DisttuiError: A host cannot be reached: others that wait there may come before it.
    """
    with viewer.reach(run) as reached:
        reached.refuse_some()
        hosts = []
        for node, answer in reached.ask("leases", gpus=False).items():
            if isinstance(answer, DisttuiError):
                raise answer
            hosts.append(_read(run.hosts[node].name, answer))
        waiting = {(one["uid"] == host.uid, place_of(one)) for host in hosts for one in host.leases if _waits(one)}
        own = next((place for mine, place in waiting if mine and place.run == run.run), None)
        if own is None:
            raise InputError(f"{short(run.run)} is not in line", "See disttui queue, and disttui ps.")
        others = [place for _, place in waiting if place != own]
        place = _moved(own, others, to, priority)
        moved = Moved(
            place, place != own, sum(other < place for other in others), sum(other > place for other in others)
        )
        if not moved.changed:
            return moved
        answer = reached.ask("move", [0], **run.request(), priority=-place.before, order=place.order)[0]
        if isinstance(answer, DisttuiError):
            raise answer
    return moved


def _waits(lease: Lease) -> bool:
    return lease["state"] == "waiting"


def _moved(
    own: LinePlace, others: Sequence[LinePlace], to: Literal["first", "last"] | None, priority: int | None
) -> LinePlace:
    if to is None or not others:
        return own._replace(before=own.before if priority is None else -priority)
    if to == "first":
        first = min(others)
        return min(own, own._replace(before=first.before, order=max(0.0, first.order - _APART)))
    last = max(others)
    return max(own, own._replace(before=last.before, order=min(last.order + _APART, math.nextafter(LATEST, 0))))


def lease(
    viewer: Viewer, hosts: Sequence[str], gpus: Sequence[int] | None, *, seconds: float | None, note: str = ""
) -> tuple[str, ...]:
    """Lease hosts by hand, all or none of them; returns their names.

    Args:
        gpus: The GPUs of each; None: the whole host.
        seconds: How long; None: until it is released.

    Raises:
        InputError: A name is not a host.
        HostError: Others have it, or a host cannot be reached.
    """
    wanted: dict[str, object] = {"gpus": None if gpus is None else list(gpus)}
    done: list[tuple[Destination, str]] = []
    places = chosen(hosts, None, viewer.environ)
    try:
        for place in sorted(places, key=lambda place: place.name):
            made = _ask(viewer, place, "lease", {**wanted, "seconds": seconds, "note": note, "by": whoami()})
            done.append((place, str(made.get("lease"))))
    except BaseException:
        for place, name in done:  # what this user has leased there before stays
            with suppress(DisttuiError):
                _ask(viewer, place, "release", {"lease": name})
        raise
    return tuple(place.name for place in places)


def release(viewer: Viewer, hosts: Sequence[str], gpus: Sequence[int] | None = None) -> Mapping[str, tuple[Lease, ...]]:
    """Release what this user has leased by hand; returns it by host.

    Args:
        gpus: Only leases of any of these; None: all.

    Raises:
        InputError: A name is not a host.
        HostError: A host cannot be reached.
    """
    wanted = {"gpus": None if gpus is None else list(gpus)}
    places = chosen(hosts, None, viewer.environ)
    return {place.name: read_leases(_ask(viewer, place, "release", wanted).get("leases")) for place in places}


def _ask(viewer: Viewer, place: Destination, op: str, request: Mapping[str, object]) -> Mapping[str, object]:
    link = viewer.open_link(place.host, place.ssh_config)
    try:
        answer: Mapping[str, object] = link.request(op, timeout=PATIENCE, **request)
        return answer
    finally:
        link.close()


def _read(host: str, answer: Mapping[str, object]) -> HostLeases:
    return HostLeases(
        host=host,
        leases=read_leases(answer.get("leases")),
        gpus=read_gpus(answer),
        problem=text(answer.get("problem"), _LONG),
        time=number(answer.get("time")) or 0.0,
        uid=whole(answer.get("uid")) or 0,
    )
