"""Why a run has failed, or what it waits for right now."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from runner.api.viewer import Viewer
from runner.diagnose.hang import Standing, standing, standings
from runner.errors import DisttuiError
from runner.protocol.files import RankStacks
from runner.runs.diagnoses import Diagnosis, keep
from runner.runs.registry import KnownRun, mirror_of
from runner.runs.remote import Reached, missing, sync
from runner.runs.replay import replay
from runner.runs.state import RunState

_BETWEEN = 2.0
"""Seconds between two samples of the ranks' stacks: most steps take less."""


@dataclass(frozen=True)
class Diagnosed:
    """A run, and where its ranks stand."""

    run: KnownRun
    state: RunState
    ranks: tuple[Standing, ...]
    asked: bool
    """Whether the ranks were asked just now; else it comes from the run's records."""
    warnings: tuple[str, ...]


def diagnose(viewer: Viewer, run: KnownRun, words: Callable[[Diagnosed], str] | None = None) -> Diagnosed:
    """Ask every rank of a running run where it is, or find the cause of a failed one.

    Args:
        words: Makes the text that is stored of the ranks' answers, for the time after their end.

    Raises:
        DisttuiError: No host can be reached.
    """
    warnings: list[str] = []
    with mirror_of(run) as folder:
        nodes = [] if run.gone or run.problem else missing(run, folder)
        with viewer.reach(run, nodes) as reached:
            if nodes:
                reached.refuse_none()
            warnings += [error.sentence for error in reached.errors.values()]
            # Before anything else: a rank that hangs now may continue in a moment.
            ranks = _ask(run, reached, warnings)
            warnings += map(str, sync(run, folder, reached).values())
            # Another viewer of this machine has locked the mirror then, and updates it.
            state = replay(run, folder if nodes else run.folder).state
    asked = bool(ranks) and state.result is None
    found = Diagnosed(run, state, tuple(ranks if asked else standings(state)), asked, tuple(warnings))
    if asked and words:
        try:
            keep(run.folder, Diagnosis(max(1, state.attempt), time.time(), words(found)))
        except OSError as error:
            kept_not = f"this diagnosis is not kept: {error.strerror}: {run.folder}"
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
    """Ask every rank once; the answers by rank and node."""
    found: dict[tuple[int, int], RankStacks] = {}
    for node, answer in reached.ask("stacks", **run.request()).items():
        if isinstance(answer, DisttuiError):
            warnings.append(answer.sentence)
            continue
        ranks: Mapping[str, RankStacks] = answer["ranks"]
        begin = sum(host.nproc for host in run.hosts[:node])
        # A host can answer for its own ranks only.
        for rank in range(begin, begin + run.hosts[node].nproc):
            if str(rank) in ranks:
                found[rank, node] = ranks[str(rank)]
    return found
