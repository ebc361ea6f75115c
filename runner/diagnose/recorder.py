"""What torch's flight recorder shows: which collective each rank has entered, and who is missing in it.

Field names: torch/csrc/distributed/c10d/FlightRecorder.hpp. gloo writes numbers as strings, NCCL as numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Group = tuple[str, str]
"""Backend and number of a process group; the same on every rank."""

_EVERYBODY = "0"
"""The number of the process group that all ranks are in."""


@dataclass(frozen=True)
class Call:
    """A collective as one rank has called it."""

    name: str
    sizes: str
    since: float | None = None
    """Unix time of the rank's host when it was entered."""


@dataclass(frozen=True)
class GroupProgress:
    """How far one rank is in one process group."""

    enqueued: int
    completed: int
    calls: Mapping[int, Call]
    """Number → what was called, of late."""


@dataclass(frozen=True)
class Wait:
    """Ranks that wait for others in one process group."""

    group: Group
    number: int
    """Of the collective, counted from 1 within the group."""
    inside: tuple[int, ...]
    missing: tuple[int, ...]
    calls: Mapping[int, Call]
    """Rank → what it has called as that number."""

    @property
    def mismatched(self) -> bool:
        """Whether the ranks inside have called different things."""
        shaped = {(call.name, call.sizes) for call in self.calls.values() if _same_shaped(call.name)}
        return len({call.name for call in self.calls.values()}) > 1 or (not self.missing and len(shaped) > 1)


def progress(answer: Mapping[str, Any]) -> dict[Group, GroupProgress]:
    """Read the `recorder` of a rank's answer."""
    found: dict[Group, GroupProgress] = {}
    recorder = answer.get("recorder")
    for backend, trace in recorder.items() if isinstance(recorder, Mapping) else ():
        for group, status in dict(trace.get("pg_status") or {}).items():
            enqueued = _number(status.get("last_enqueued_collective"))
            completed = _number(status.get("last_completed_collective"))
            if enqueued >= 0:
                calls = dict(_calls(trace.get("entries") or (), str(group)))
                found[str(backend), str(group)] = GroupProgress(enqueued, completed, calls)
    return found


def waits(ranks: Mapping[int, Mapping[Group, GroupProgress]]) -> list[Wait]:
    """Who waits for whom: one `Wait` per process group in which a rank waits.

    The ranks with the lowest number entered are the ones missing; where all have entered the same, none is.
    """
    groups = sorted({group for each in ranks.values() for group in each})
    found = []
    for group in groups:
        members = {rank: each[group] for rank, each in ranks.items() if group in each}
        if group[1] == _EVERYBODY:
            # The recorder knows a group only from its first collective on.
            members = {rank: members.get(rank, GroupProgress(0, -1, {})) for rank in ranks}
        lowest = min(one.enqueued for one in members.values())
        behind = [rank for rank, one in members.items() if one.enqueued == lowest]
        if len(behind) < len(members):
            number = lowest + 1
            inside = [rank for rank in members if rank not in behind]
        elif any(one.completed < one.enqueued for one in members.values()):
            number, inside, behind = lowest, list(members), []
        else:
            continue
        calls = {rank: members[rank].calls[number] for rank in inside if number in members[rank].calls}
        found.append(Wait(group, number, tuple(sorted(inside)), tuple(sorted(behind)), calls))
    return found


def _calls(entries: Any, group: str) -> Iterator[tuple[int, Call]]:
    for entry in entries:
        if entry.get("is_p2p") or str((entry.get("process_group") or [""])[0]) != group:
            continue
        name = str(entry.get("profiling_name", "?")).rpartition(":")[2].strip("_")
        sizes = str(entry.get("input_sizes", "")).replace(" ", "")
        since = _number(entry.get("time_created_ns")) / 1e9
        call = Call(re.sub(r"[^\w ]", "", name)[:60], sizes[:200], since if since > 0 else None)
        yield _number(entry.get("collective_seq_id")), call


def _same_shaped(name: str) -> bool:
    """Whether all ranks must give the same sizes: not so for scatters, gathers and uneven splits."""
    return name in ("all_reduce", "allreduce", "broadcast", "reduce")


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return -1
