"""A hostfile of MPI or DeepSpeed → a draft of a profile."""

from __future__ import annotations

from runner.errors import InputError
from runner.hosts.discovery.candidate import flaw_of, spread
from runner.hosts.discovery.hostfile import HostLine, host_lines
from runner.planning.interop.draft import Machine, Translation, shown
from runner.profile.fields import MOST_PROCESSES
from runner.profile.schema import MOST_HOSTS

_MOST_PROBLEMS = 50
"""After so many the rest is not looked at."""


def read(text: str, draft: Translation) -> None:
    """Take over every line; a host on two lines has the slots of both."""
    counts: dict[str, int | None] = {}
    for line in host_lines(text):
        if len(draft.problems) >= _MOST_PROBLEMS:
            return
        try:
            names = spread(line.host)
        except InputError as error:
            draft.wrong(line.number, 1, error.what, "expected a name, or a range like node[1-4]")
            continue
        for name in names:
            if flaw := flaw_of(name):
                draft.wrong(line.number, 1, f"{shown(name)} is no host: {flaw}", "write it like: node1 slots=4")
            elif len(counts) >= MOST_HOSTS and name not in counts:
                draft.wrong(line.number, 1, f"more than {MOST_HOSTS:,} hosts", "take some out")
                return
            else:
                _add(draft, line, name, counts)
    if not counts and not draft.problems:
        draft.wrong(1, 1, "no host", "expected lines like: node1 slots=4")
    if counts and not draft.problems:
        what = "mpirun and deepspeed read such files → torchrun, which starts the same; or set one of them"
        draft.ambiguous(0, "launch.launcher", what)
    draft.hosts = [Machine(name, slots) for name, slots in counts.items()]
    draft.listed = True


def _add(draft: Translation, line: HostLine, name: str, counts: dict[str, int | None]) -> None:
    slots, before = line.slots, counts.get(name)
    total = (slots or 0) + (before or 0)
    if slots == 0 or total > MOST_PROCESSES:
        draft.wrong(line.number, 1, f"{shown(name)}: {total:,} slots", f"expected 1 to {MOST_PROCESSES:,}")
        return
    counts[name] = total or None
    if slots is None:
        what = "no slots are given → num_processes: auto, one for each GPU or core (MPI: one process)"
        draft.ambiguous(line.number, shown(name), what)
    elif before:
        draft.ambiguous(line.number, shown(name), f"a second line of this host: {before} + {slots} slots")
    else:
        draft.translated(line.number, shown(name), f"{slots} slots → num_processes: {slots}")
    for word in line.rest:
        draft.dropped(line.number, shown(name), f"{shown(word)} has no counterpart")
