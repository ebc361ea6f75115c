"""Clocks that differ, honestly or not: a run is shown by its leader's, and each host's costs its own part alone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disttui.runner.runs.contents import read_content
from disttui.runner.runs.follow import RecordRead
from disttui.runner.runs.following import CaughtUp, Refresh, Update
from disttui.runner.runs.state import begin
from disttui.tui.dashboard.hosts import is_stale
from disttui.tui.run.feed import LiveFeed, RunChanged, Snapshot
from tests.unit.state_kit import fold

_YEAR_9999 = 253_000_000_000.0
_Record = tuple[int, str, dict[str, Any]]


def _seen(tmp_path: Path, updates: Iterable[_Record | Update], count: int = 2) -> Snapshot:
    """What a screen shows after these updates of a run."""
    posted: list[RunChanged] = []

    class Follows:
        """What `Following` tells."""

        mirror = tmp_path
        state = begin("run-1", tuple(f"n{node}" for node in range(count)), (1,) * count)

        def __iter__(self) -> Iterator[Update]:
            for update in updates:
                if isinstance(update, tuple):
                    node, name, record = update
                    self.state = fold(self.state, node, name, record)
                    yield RecordRead(node, read_content(name, record))
                else:
                    yield update
            yield Refresh()

    LiveFeed(SimpleNamespace(post_message=posted.append), Follows()).run()  # type: ignore[arg-type]
    return posted[-1].snapshot


def _told(node: int, began: float, seconds: int) -> Iterator[_Record]:
    """A host's first event, and what it tells every second."""
    yield node, "events.jsonl", {"t": began, "e": "join", "node": node}
    for second in range(seconds + 1):
        yield node, "telemetry.jsonl", {"t": began + second, "cpu": 50.0, "mem_used": 1, "mem_total": 2}


def _trained(node: int, began: float, steps: int) -> Iterator[_Record]:
    for step in range(1, steps + 1):
        record = {"t": began + step, "step": step, "loss": 1.0 / step}
        yield node, f"attempt-1/rank-{node}.metrics.jsonl", record


def _clock(node: int, t: float, offset: float) -> _Record:
    return 0, "events.jsonl", {"t": t, "e": "clock", "node": node, "offset": offset}


@pytest.mark.parametrize("ahead", [3600.0, -3600.0, 20.0, 0.0])
def test_a_viewer_whose_clock_is_off_sees_the_run_as_it_is(tmp_path: Path, ahead: float) -> None:
    began = time.time() + ahead - 30
    both = zip(_told(0, began, 30), _told(1, began, 30), strict=True)
    told = [*itertools.chain.from_iterable(both), *_trained(0, began, 29)]
    last = {"t": time.time() + ahead, "cpu": 50.0}
    seen = _seen(tmp_path, [*told, CaughtUp(), (0, "telemetry.jsonl", last)])
    assert 29 < seen.elapsed < 45
    assert seen.now - 10 < seen.seen[0] <= seen.now
    assert not any(is_stale(host, seen) for host in seen.state.hosts)
    assert seen.history.each["loss"][0].at(seen.now) == pytest.approx(1 / 29)


def test_a_run_whose_hosts_are_silent_is_as_old_as_it_is(tmp_path: Path) -> None:
    """What was recorded an hour ago does not show that a clock is behind."""
    seen = _seen(tmp_path, [*_told(0, time.time() - 3600, 30), CaughtUp()], 1)
    assert seen.elapsed > 3500 and seen.now - seen.seen[0] > 3500


@pytest.mark.parametrize("lie", [_YEAR_9999, -1.0, 1e300])
def test_a_false_host_clock_does_not_move_the_start_of_the_run(tmp_path: Path, lie: float) -> None:
    began = time.time() - 30
    seen = _seen(tmp_path, [*_told(1, lie, 2), *_told(0, began, 30), _clock(1, began, 0.0), *_told(1, lie, 2)])
    assert seen.began == began
    assert 29 < seen.elapsed < 60
