"""A run as its records tell it: state, events, metrics."""

from __future__ import annotations

from dataclasses import replace

from runner.api.viewer import Viewer
from runner.runs.registry import KnownRun, mirror_of
from runner.runs.remote import missing, sync
from runner.runs.replay import Replay
from runner.runs.replay import replay as fold_mirror

LIMIT = 5.0
"""Seconds that hosts may take to be reached before what is held here is used without them."""


def replay(viewer: Viewer, run: KnownRun, *, local: bool = False) -> Replay:
    """All that is known of a run: its state, events and metrics, from its hosts as far as they can be reached.

    Args:
        local: From what is held here alone.
    """
    warnings: list[str] = []
    with mirror_of(run) as folder:
        nodes = [] if local or run.sandbox or run.problem else missing(run, folder)
        if nodes:
            with viewer.reach(run, nodes, LIMIT) as reached:
                warnings += [f"{error.sentence}; told is what is held here" for error in reached.errors.values()]
                warnings += map(str, sync(run, folder, reached).values())
        # Another viewer of this machine holds the mirror and keeps it fresh: without hosts, its files are the best.
        found = fold_mirror(run, folder if nodes else run.folder)
    return replace(found, warnings=(*warnings, *found.warnings))
