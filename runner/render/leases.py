"""Renders leases, GPU processes and the queue as text and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Literal

from disttui.runner.api.leasing import HostLeases, Moved, WaitingRun
from disttui.runner.formatting import amount, gibibytes, table
from disttui.runner.hosts.facts import Gpu
from disttui.runner.ids import short
from disttui.runner.protocol.leases import MOST_NAMED, Lease, span, what_of, who_has
from disttui.runner.text import clean

_QUEUE = (("RUN", "<"), ("USER", "<"), ("FOR", ">"), ("WANTS", "<"), ("WAITS FOR", "<"))
_NAMED = 4
"""Leases ahead that are named if details are not wanted."""
_COLUMNS = (("HOST", "<"), ("USES", "<"), ("LEASE", "<"), ("SINCE", ">"), ("PROCESSES", "<"))


def render_who(hosts: Sequence[HostLeases]) -> str:
    """A table with a line for each GPU, and for each lease of a host without GPUs."""
    rows = [row for host in hosts for row in _rows(host)]
    notes = [f"{clean(host.host)}: {host.problem}" for host in hosts if host.problem]
    return "\n".join([table(_COLUMNS, rows), *notes])


def render_queue(runs: Sequence[WaitingRun]) -> str:
    """A table with a line for each queued run, in queue order."""
    rows = []
    for run in runs:
        ahead = {(one["user"], one["run"]): one for part in run.hosts for one in part.ahead}
        names = [f"{user}'s {short(name)}" if name else f"{user}'s reservation" for user, name in ahead]
        waits = ", ".join(names) or "its start"
        if len(names) > 1:
            waits = f"{len(names)}{'+' * (len(names) >= MOST_NAMED)} ahead: {waits}"
        wants = f"{clean(run.hosts[0].host)[:10]}: {what_of(run.hosts[0].wanted)}"
        if len(run.hosts) > 1:
            wants = f"{amount(len(run.hosts), 'host')}"
        since = span(max(0.0, run.hosts[0].time - run.since))
        rows.append((short(run.run)[:40], run.user[:10], since, wants, waits))
    return table(_QUEUE, rows) if rows else "the queue is empty"


def queue_details(runs: Sequence[WaitingRun]) -> str:
    """What each queued run waits for, with a line for each host and lease ahead."""
    lines = []
    for run in runs:
        lines.append(f"{run.run} of {run.user}")
        for part in run.hosts:
            wants = f"  {clean(part.host)}: {what_of(part.wanted)}"
            lines += [f"{wants}, behind {what_of(one)}: {who_has(one, part.time)}" for one in part.ahead]
            lines += [] if part.ahead else [f"{wants}, free"]
    return "\n".join(lines) or "the queue is empty"


def ahead_lines(ahead: Sequence[tuple[str, float, Lease]]) -> list[str]:
    """What a run would wait for, one line each: `waits for box1 GPU 0: alice's llama-7f3a`.

    Args:
        ahead: (host, Unix time of its clock, a lease there)
    """
    lines = [f"waits for {clean(host)} {what_of(one)}: {who_has(one, now)}" for host, now, one in ahead]
    return lines or ["next to start"]


def moved_line(run: str, moved: Moved, to: Literal["first", "last"]) -> str:
    """The new place of a run that was moved in the queue."""
    traded = f", traded places with {short(moved.traded)}" if moved.traded else " already"
    return f"{short(run)} is the {to} of your runs{traded}; {amount(moved.ahead, 'run')} before it: disttui lease queue"


def queue_json(runs: Sequence[WaitingRun], details: bool = False) -> list[dict[str, object]]:
    """The queued runs as data for JSON.

    Args:
        details: Include all leases ahead in full, not only user, run and GPUs of the first four.
    """
    if details:
        return [asdict(run) for run in runs]
    return [
        {
            "run": run.run, "user": run.user, "since": run.since,
            "hosts": [
                {"host": part.host, "gpus": part.wanted["gpus"], "count": part.wanted["count"],
                 "ahead": [{name: one[name] for name in ("user", "run", "gpus")} for one in part.ahead[:_NAMED]]}
                for part in run.hosts
            ],
        }
        for run in runs
    ]  # fmt: skip


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
    waiting = {(one["uid"], one["run"]) for one in leases if one["state"] == "waiting"}
    others = [one for one in leases if one["state"] == "held" and not listed & set(one["gpus"] or ())]
    for one in others:
        yield (name, what_of(one), *_lease(one, host, None))
    if not host.gpus and not others:
        yield (name, "CPUs", "free", "", "")
    if waiting:
        yield (name, "queue", f"{amount(len(waiting), 'run')}: disttui lease queue {name}", "", "")


def _once(leases: Sequence[Lease]) -> Sequence[Lease]:
    """The leases, without duplicates from several node ranks of one run on the same host."""
    found: dict[tuple[object, ...], Lease] = {}
    for one in leases:
        which = one["run"] or len(found)  # manual leases have no run and are never duplicates
        found.setdefault((which, one["uid"], one["state"], repr(one["gpus"])), one)
    return list(found.values())


def _lease(lease: Lease | None, host: HostLeases, gpu: Gpu | None) -> tuple[str, str, str]:
    processes = ", ".join(
        f"{one.user}: {one.command}" + (f" {gibibytes(one.memory)}" if one.memory else "")
        for one in (gpu.processes if gpu else ())
    )
    if lease is None:
        return "free" if not processes else "none", "", processes
    idle = lease["kind"] == "hand" and lease["until"] is None and gpu is not None
    if idle and lease["user"] not in {one.user for one in (gpu.processes if gpu else ())}:
        processes = processes or "none of theirs: ask, or use --ignore-leases"
    return who_has(lease, host.time), f"{span(max(0.0, host.time - lease['since']))} ago", processes
