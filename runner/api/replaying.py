"""A run from its records: state, events, metrics."""

from __future__ import annotations

from dataclasses import replace

from runner.api.viewer import Viewer
from runner.runs.registry import KnownRun, mirror_of
from runner.runs.remote import missing, sync
from runner.runs.replay import Replay
from runner.runs.replay import replay as fold_mirror

LIMIT = 5.0
"""Seconds to connect to hosts before the mirror is used without them."""


def replay(viewer: Viewer, run: KnownRun, *, local: bool = False) -> Replay:
    """A run's state, events and metrics, updated from its reachable hosts.

    Args:
        local: Use the mirror alone.
    """
    warnings: list[str] = []
    with mirror_of(run) as folder:
        nodes = [] if local or run.gone or run.problem else missing(run, folder)
        if nodes:
            with viewer.reach(run, nodes, LIMIT) as reached:
                warnings += [f"{error.sentence}; only the records here are used" for error in reached.errors.values()]
                warnings += map(str, sync(run, folder, reached).values())
        # Another viewer of this machine has locked the mirror and updates it: use its files, without the hosts.
        found = fold_mirror(run, folder if nodes else run.folder)
    return replace(found, warnings=(*warnings, *found.warnings))
