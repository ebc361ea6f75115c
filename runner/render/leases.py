"""Who uses which GPU of which host, by lease and by process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Literal

from runner.api.leasing import HostLeases, Moved, WaitingRun
from runner.formatting import amount, gibibytes
from runner.hosts.facts import Gpu
from runner.ids import short
from runner.protocol.lease_words import span, what_of, who_has
from runner.protocol.leases import Lease
from runner.render.tables import table
from runner.text import clean

_MOST = 4
"""Reasons of a run on one host."""
_QUEUE = (("RUN", "<"), ("USER", "<"), ("PRIORITY", ">"), ("SINCE", ">"), ("WANTS", "<"), ("WAITS FOR", "<"))
_COLUMNS = (("HOST", "<"), ("USES", "<"), ("LEASE", "<"), ("SINCE", ">"), ("PROCESSES", "<"))


def render_who(hosts: Sequence[HostLeases]) -> str:
    """A line for each GPU, and for each lease of a host that is not of a GPU."""
    rows = [row for host in hosts for row in _rows(host)]
    notes = [f"{clean(host.host)}: {host.problem}" for host in hosts if host.problem]
    return "\n".join([table(_COLUMNS, rows), *notes])


def render_queue(runs: Sequence[WaitingRun]) -> str:
    """A line for each queued run, the first in line first, and one for each host that it waits for."""
    rows = []
    for run in runs:
        waits = [part for part in run.hosts if part.ahead]
        reasons = [
            f"{part.host}: {what_of(one)}: {who_has(one, part.time)}" for part in waits for one in part.ahead[:_MOST]
        ]
        since = f"{span(max(0.0, run.hosts[0].time - run.since))} ago"
        hosts = ", ".join(f"{part.host} {what_of(part.wanted)}" for part in run.hosts)
        first, *others = reasons or ["nothing known: it is starting, or a host was not asked"]
        rows.append((short(run.run), clean(run.user), f"{run.priority}", since, clean(hosts), clean(first)))
        rows += [("", "", "", "", "", clean(other)) for other in others]
    return table(_QUEUE, rows) if rows else "no run is in line"


def ahead_lines(ahead: Sequence[tuple[str, float, Lease]]) -> list[str]:
    """What a run would wait for, a line each: `waits for box1 GPU 0: alice's llama-7f3a`.

    Args:
        ahead: Host, its unix time, and a lease there.
    """
    lines = [f"waits for {clean(host)} {what_of(one)}: {clean(who_has(one, now))}" for host, now, one in ahead]
    return lines or ["waits for nobody"]


def moved_line(run: str, moved: Moved, to: Literal["first", "last"] | None) -> str:
    """Whether a run has the place that it was to have."""
    left = moved.ahead if to == "first" else moved.behind if to == "last" else 0
    if left:
        side = "before" if to == "first" else "behind"
        return f"{short(run)} is not {to}: {amount(left, 'run')} {side} it cannot be passed: disttui queue"
    if not moved.changed:
        return f"{short(run)} is {to} already" if to else f"{short(run)} has priority {-moved.place.before} already"
    now = f"is {to} now" if to else "has another place in the line"
    return f"{short(run)} {now}, with priority {-moved.place.before}: disttui queue"


def queue_json(runs: Sequence[WaitingRun]) -> list[dict[str, object]]:
    """All known data of the queued runs."""
    return [asdict(run) for run in runs]


def who_json(hosts: Sequence[HostLeases]) -> list[dict[str, object]]:
    """All known data of the hosts."""
    return [asdict(host) for host in hosts]


def _rows(host: HostLeases) -> Iterator[tuple[str, ...]]:
    name = clean(host.host)
    leases = _once(host.leases)
    for gpu in host.gpus:
        held = [one for one in leases if one["state"] == "held" and gpu.index in (one["gpus"] or ())]
        for lease in held:
            yield (name, f"GPU {gpu.index}", *_lease(lease, host, gpu))
        if not held:
            yield (name, f"GPU {gpu.index}", *_lease(None, host, gpu))
    listed = {gpu.index for gpu in host.gpus}
    others = [one for one in leases if one["state"] == "waiting" or not listed & set(one["gpus"] or ())]
    for one in others:
        yield (name, what_of(one), *_lease(one, host, None))
    if not host.gpus and not others:
        yield (name, "CPUs", "free", "", "")


def _once(leases: Sequence[Lease]) -> Sequence[Lease]:
    """The leases without those of a run's further node ranks that have the same of the host."""
    found: dict[tuple[object, ...], Lease] = {}
    for one in leases:
        which = one["run"] or len(found)  # those by hand have none
        found.setdefault((which, one["uid"], one["state"], repr(one["gpus"])), one)
    return list(found.values())


def _lease(lease: Lease | None, host: HostLeases, gpu: Gpu | None) -> tuple[str, str, str]:
    processes = ", ".join(
        clean(f"{one.user}: {one.command}") + (f" {gibibytes(one.memory)}" if one.memory else "")
        for one in (gpu.processes if gpu else ())
    )
    if lease is None:
        return "free" if not processes else "none", "", processes
    idle = lease["kind"] == "hand" and lease["until"] is None and gpu is not None
    if idle and lease["user"] not in {one.user for one in (gpu.processes if gpu else ())}:
        processes = processes or "none of theirs: ask, or go on with --ignore-leases"
    return who_has(lease, host.time), f"{span(max(0.0, host.time - lease['since']))} ago", processes
