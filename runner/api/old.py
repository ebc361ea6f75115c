"""Ended runs, and sweeps of such, that can be removed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from disttui.runner.api.ending import forget
from disttui.runner.api.sweeping import load_sweep, sweeps_folder
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.ids import short
from disttui.runner.paths import inside
from disttui.runner.protocol.summary import disk_use
from disttui.runner.runs.registry import KnownRun, known_runs, run_names
from disttui.runner.runs.summary import summaries
from disttui.runner.text import clean

LIMIT = 10.0
"""Seconds to connect to a host."""


@dataclass(frozen=True)
class Old:
    """An ended run, and its size."""

    run: KnownRun
    ended: float
    size: int
    """Bytes here and on its hosts."""


class OldRuns(NamedTuple):
    """Runs that can be removed, oldest first, and why others could not be examined."""

    runs: tuple[Old, ...]
    problems: tuple[str, ...]


def old_runs(viewer: Viewer, *, older: float | None = None, over: int | None = None) -> OldRuns:
    """The ended runs older than `older` seconds, and the oldest ones until the rest needs at most `over` bytes.

    Removes nothing: `remove` does.
    """
    known, problems = known_runs(viewer.environ)
    ended = []
    for run in known:
        try:
            found = _look(viewer, run)
        except DisttuiError as error:
            problems.append(f"{short(run.run)}: {clean(error.sentence)}; not removed")
            continue
        if found:
            ended.append(found)
    ended.sort(key=lambda old: old.ended)
    now, total = time.time(), sum(old.size for old in ended)
    chosen = []
    for old in ended:
        if (older is not None and now - old.ended > older) or (over is not None and total > over):
            chosen.append(old)
            total -= old.size
    return OldRuns(tuple(chosen), tuple(problems))


def remove(viewer: Viewer, chosen: Iterable[Old]) -> Iterator[tuple[KnownRun, DisttuiError | None]]:
    """Forget runs one after the other; yields each, with the error if it was not removed."""
    for old in chosen:
        try:
            forget(viewer, old.run)
        except DisttuiError as error:
            yield old.run, error
        else:
            yield old.run, None


def old_sweeps(viewer: Viewer, older: float, without: Iterable[Old] = ()) -> tuple[str, ...]:
    """The sweeps that began more than `older` seconds ago and have no run left, not counting those in `without`."""
    left = {*run_names(viewer.environ)} - {old.run.run for old in without}
    found = []
    for path in sorted(sweeps_folder(viewer.environ).glob("*.json")):
        with suppress(OSError, InputError):  # a damaged one is left alone
            if time.time() - path.stat().st_mtime > older:
                sweep = load_sweep(viewer.environ, path.stem)
                if not left & {one.run for one in sweep.runs}:
                    found.append(sweep.name)
    return tuple(found)


def remove_sweep(viewer: Viewer, name: str) -> None:
    """Remove the files of a sweep; its runs stay. Raises InputError where one cannot be removed."""
    for suffix in (".journal", ".lock", ".part", ".json"):
        path = inside(sweeps_folder(viewer.environ), name + suffix)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}", "Remove it yourself.") from None


def _look(viewer: Viewer, run: KnownRun) -> Old | None:
    """A run's end and size, None while it is running. Raises DisttuiError when a host cannot be reached."""
    here = disk_use(str(run.folder))
    known: dict[str, object] = run.summary()
    if run.gone:
        return None if known["state"] in ("running", "joining", "queued") else Old(run, _ended(known, run), here)
    with viewer.reach(run, limit=LIMIT) as reached:
        reached.refuse_some()
        held = here
        for node, answer in reached.ask("list", **run.request()).items():
            if isinstance(answer, DisttuiError):
                raise answer
            for one in summaries(answer):
                if one["run"] == run.run and one.get("node_rank") == node:
                    if one.get("alive") or "problem" in one:
                        return None
                    known.update(one)
                    held += one.get("size", 0)
    return Old(run, _ended(known, run), held)


def _ended(summary: Mapping[str, object], run: KnownRun) -> float:
    ended = summary.get("ended")
    return float(ended) if isinstance(ended, int | float) else run.started
