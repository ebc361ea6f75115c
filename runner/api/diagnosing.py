"""Explains why a run failed, or what it is waiting for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from disttui.runner import private
from disttui.runner.api.viewer import Viewer
from disttui.runner.diagnose.hang import Standing, standing, standings
from disttui.runner.errors import DisttuiError
from disttui.runner.formatting import number
from disttui.runner.paths import inside
from disttui.runner.protocol.files import RankStacks
from disttui.runner.protocol.regular import read_regular
from disttui.runner.runs.condition import is_lost
from disttui.runner.runs.registry import KnownRun, mirror_of
from disttui.runner.runs.remote import Reached, RunRemovedError, missing, removed, sync, without_folders
from disttui.runner.runs.replay import replay
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean_lines

_BETWEEN = 2.0
"""Seconds between two samples of the ranks' stacks; most steps take less."""


@dataclass(frozen=True)
class Diagnosed:
    """A run, and the stacks of its ranks."""

    run: KnownRun
    state: RunState
    ranks: tuple[Standing, ...]
    asked: bool
    """Whether the ranks were asked just now; else from the run's records."""
    warnings: tuple[str, ...]


def diagnose(viewer: Viewer, run: KnownRun, words: Callable[[Diagnosed], str] | None = None) -> Diagnosed:
    """Ask every rank of a run for its stack, or find why the run failed.

    Args:
        words: Makes the text that is stored of the ranks' answers, for the time after their end.

    Raises:
        DisttuiError: No host can be reached, and no host's mirror is complete.
    """
    warnings: list[str] = []
    with mirror_of(run) as folder:
        nodes = [] if run.gone or run.problem else missing(run, folder)
        with viewer.reach(run, nodes) as reached:
            if len(nodes) == len(run.hosts):
                reached.refuse_none()
            warnings += [error.sentence for error in reached.errors.values()]
            warnings += [f"{link.host}: {link.note}" for link in set(reached.links.values()) if link.note]
            # First, since a rank that hangs now may continue at any moment.
            ranks = _ask(run, reached, warnings)
            warnings += map(str, sync(run, folder, reached).values())
            problems = removed(run, reached, list(reached.links))
            gone = {run.hosts[node].name for node, error in problems.items() if isinstance(error, RunRemovedError)}
            warnings = [one for one in warnings if one.partition(": ")[0] not in gone]
            # Without nodes to ask, read the mirror itself, which another viewer may have locked and be updating.
            state = without_folders(replay(run, folder if nodes else run.folder).state, problems)
    asked = bool(ranks) and state.result is None
    found = Diagnosed(run, state, tuple(ranks if asked else standings(state)), asked, tuple(warnings))
    if asked and words and not is_lost(state):
        try:
            keep(run.folder, Diagnosis(max(1, state.attempt), time.time(), words(found)))
        except OSError as error:
            kept_not = f"this diagnosis was not saved: {error.strerror}: {run.folder}"
            return replace(found, warnings=(*warnings, kept_not))
    return found


def _ask(run: KnownRun, reached: Reached, warnings: list[str]) -> list[Standing]:
    first = _look(run, reached, warnings)
    later: dict[tuple[int, int], RankStacks] = {}
    if not all(one.get("moved") for one in first.values()):
        time.sleep(_BETWEEN)
        later = _look(run, reached, [])
    return [
        standing(rank, run.hosts[node].name, first[rank, node], later.get((rank, node))) for rank, node in sorted(first)
    ]


def _look(run: KnownRun, reached: Reached, warnings: list[str]) -> dict[tuple[int, int], RankStacks]:
    """Ask every rank once; return its answers by (rank, node)."""
    found: dict[tuple[int, int], RankStacks] = {}
    for node, answer in reached.ask("stacks", **run.request()).items():
        if isinstance(answer, DisttuiError):
            warnings.append(answer.sentence)
            continue
        ranks: Mapping[str, RankStacks] = answer["ranks"]
        begin = sum(host.nproc for host in run.hosts[:node])
        # A host may answer only for its own ranks.
        for rank in range(begin, begin + run.hosts[node].nproc):
            if str(rank) in ranks:
                found[rank, node] = ranks[str(rank)]
    return found


NAME = "diagnoses.json"
ATTEMPTS = 4
"""Most attempts whose last diagnosis is kept."""
LONGEST = 1 << 16
"""Most characters of a stored diagnosis."""


class Diagnosis(NamedTuple):
    """What the ranks of an attempt were doing when last asked."""

    attempt: int
    time: float
    text: str


def keep(folder: Path, new: Diagnosis) -> None:
    """Store a diagnosis, replacing the earlier one of its attempt. Raises OSError."""
    others = [one for one in kept(folder) if one.attempt != new.attempt]
    newest = sorted([*others, new._replace(text=new.text[:LONGEST])])[-ATTEMPTS:]
    private.replace(inside(folder, NAME), json.dumps([one._asdict() for one in newest]))


def kept(folder: Path) -> Sequence[Diagnosis]:
    """The stored diagnoses of a run, by attempt; unreadable ones are left out."""
    try:
        data = json.loads(read_regular(inside(folder, NAME), 8 * ATTEMPTS * LONGEST))
    except (OSError, ValueError, RecursionError):
        return []
    known = [_read(one) for one in data if isinstance(one, Mapping)] if isinstance(data, list) else []
    return sorted(one for one in known if one is not None)[-ATTEMPTS:]


def _read(one: Mapping[str, object]) -> Diagnosis | None:
    attempt, time, text = one.get("attempt"), number(one.get("time")), one.get("text")
    if not isinstance(attempt, int) or time is None or not isinstance(text, str):
        return None
    return Diagnosis(attempt, time, clean_lines(text)[:LONGEST])
