"""A run that looks well and is not: its loss is not a number, or its ranks fell silent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from disttui.runner.diagnose.doubts import doubts
from disttui.runner.protocol.summary import summarize
from disttui.runner.runs.state import RunState, begin
from tests.unit.state_kit import fold

MACHINE = {"cpu": 1.0, "load": 1.0, "ram_used": 1, "ram_total": 2, "swap_used": 0, "rx": 0, "tx": 0}


def stepping(times: Iterable[float], loss: object = 1.0, ahead: float = 0.0) -> RunState:
    """A run of two hosts whose ranks record a step at each of these times; the second host's clock is ahead."""
    state = begin("t-1", ("node1", "node2"), (1, 1))
    for node, shift in enumerate((0.0, ahead)):
        begun = {"t": shift, "e": "attempt", "attempt": 1, "master": "m", "port": 1, "world_size": 2}
        state = fold(state, node, "events.jsonl", begun)
        for step, t in enumerate(times):
            record = {"t": t + shift, "step": step, "loss": loss if node else 1.0}
            state = fold(state, node, f"attempt-1/rank-{node}.metrics.jsonl", record)
    return state


def at(state: RunState, now: float, ahead: float = 0.0) -> RunState:
    """The state with telemetry of this time from both hosts."""
    for node, shift in enumerate((0.0, ahead)):
        state = fold(state, node, "telemetry.jsonl", {"t": now + shift, **MACHINE})
    return state


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_no_number_is_doubtful(loss: str) -> None:
    state = stepping([1.0, 2.0], loss)
    assert doubts(state) == [f"the loss is {loss} on rank 1 since step 0"]
    ended = fold(state, 0, "exit.json", {"t": 3.0, "code": 0, "state": "finished", "attempt": 1})
    assert doubts(ended) == [f"the loss is {loss} on rank 1 since step 0"]
    everywhere = fold(ended, 0, "attempt-1/rank-0.metrics.jsonl", {"t": 3.0, "step": 2, "loss": loss})
    assert doubts(everywhere) == [f"the loss is {loss} since step 0"]


def test_a_loss_that_recovered_is_not_doubtful() -> None:
    state = fold(stepping([1.0], "nan"), 1, "attempt-1/rank-1.metrics.jsonl", {"t": 2.0, "step": 2, "loss": 3.0})
    assert doubts(state) == []


def test_many_pauses_without_a_step_are_doubtful() -> None:
    state = stepping([float(t) for t in range(1, 21)])
    assert doubts(at(state, 29.0)) == []
    assert doubts(at(state, 44.0)) == ["no step for 24 s (longest pause before: 1 s)"]


def test_silence_is_judged_by_each_hosts_own_clock() -> None:
    state = stepping([float(t) for t in range(1, 21)], ahead=3600.0)
    assert doubts(at(state, 25.0, ahead=3600.0)) == []
    assert doubts(at(state, 44.0, ahead=3600.0)) == ["no step for 24 s (longest pause before: 1 s)"]


def test_one_rank_that_steps_ends_the_silence() -> None:
    state = at(stepping([float(t) for t in range(1, 21)]), 44.0)
    assert doubts(fold(state, 1, "attempt-1/rank-1.metrics.jsonl", {"t": 43.0, "step": 21})) == []


def test_a_usual_pause_is_not_doubtful() -> None:
    """A validation of 15 s, a pace that is not known yet, and the end of a run."""
    validated = stepping([*range(1, 11), *range(26, 36)])
    assert doubts(at(validated, 75.0)) == []
    assert doubts(at(stepping([1.0, 1.1]), 30.0)) == []
    state = at(stepping([float(t) for t in range(1, 21)]), 44.0)
    ended = {"t": 44.0, "code": 0, "state": "finished", "attempt": 1}
    assert doubts(fold(state, 0, "exit.json", ended)) == []
    assert doubts(fold(state, 0, "events.jsonl", {"t": 44.0, "e": "stopping", "attempt": 1, "why": "user"})) == []
    stall = {"t": 44.0, "e": "stall", "attempt": 1, "since": 20.0, "silent": {"0": 24.0}, "stacks": "stacks-1.json"}
    assert doubts(fold(state, 0, "events.jsonl", stall)) == []


@pytest.mark.parametrize(("pace", "apart"), [(1.0, False), (0.9, False), (0.7, True)])
def test_ranks_of_one_group_that_do_not_keep_step_are_doubtful(pace: float, apart: bool) -> None:
    """As where the model was not wrapped: a group exists, and each rank trains by itself."""
    state = begin("t-1", ("node1", "node2"), (1, 1))
    for node, own in ((0, 1.0), (1, pace)):
        begun = {"t": 0.0, "e": "attempt", "attempt": 1, "master": "m", "port": 1, "world_size": 2}
        group = {"t": 0.0, "e": "group", "attempt": 1, "rank": node, "world_size": 2, "backend": "gloo"}
        for event in (begun, group):
            state = fold(state, node, "events.jsonl", event)
        for step in range(1, 51):
            record = {"t": 10.0 + step / own, "step": step}
            if record["t"] <= 60.0:
                state = fold(state, node, f"attempt-1/rank-{node}.metrics.jsonl", record)
    words = "rank 0 is at step 50, rank 1 at step 35: they are not synchronized; check that the model is wrapped"
    assert doubts(state) == ([words] if apart else [])


def test_a_summary_reports_silence_by_the_same_rule(tmp_path: Path) -> None:
    """What the home screen knows of a run that no screen follows."""
    now = time.time()
    folder = tmp_path / "0"
    (folder / "attempt-1").mkdir(parents=True)
    (folder / "spec.json").write_text('{"run": "t-1"}')
    (folder / "events.jsonl").write_text('{"t": 1.0, "e": "attempt", "attempt": 1}\n')
    metrics = folder / "attempt-1" / "rank-0.metrics.jsonl"

    def silent(*ago: float, alive: bool = True) -> object:
        metrics.write_text("".join(json.dumps({"t": now - seconds, "step": 1}) + "\n" for seconds in ago))
        summary = summarize(str(folder), lambda: alive)
        assert summary is not None
        return summary["silent"]

    pace = range(60, 40, -1)
    assert silent(*pace) == pytest.approx(41, abs=30)
    assert silent(*pace, 1) is None
    assert silent(*pace, alive=False) is None
    assert silent(60) is None
    assert silent(600, 300, 200) is None
