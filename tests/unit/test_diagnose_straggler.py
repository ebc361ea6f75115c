"""Who is slow, and how long a step takes, in words."""

from __future__ import annotations

import pytest

from disttui.runner.diagnose.doubts import spread_sentence, straggler_sentence
from disttui.runner.protocol.events import Straggler
from disttui.runner.runs.state import RunState, begin
from disttui.runner.untrusted.decode import MalformedRecordError, decode
from tests.unit.state_kit import fold


def stepping(times: dict[int, dict[str, float]]) -> RunState:
    state = begin("t-1", ("node1", "node2"), (2, 2))
    begun = {"t": 1.0, "e": "attempt", "attempt": 1, "master": "m", "port": 1, "world_size": 4}
    state = fold(state, 0, "events.jsonl", begun)
    for rank, values in times.items():
        state = fold(state, rank // 2, f"attempt-1/rank-{rank}.metrics.jsonl", {"t": 2.0, "step": 1, **values})
    return state


def test_a_straggler_is_reported_with_what_its_host_shows() -> None:
    shows = ["load 33 on 8 cores", "it swaps 8 MiB/s\x1b[2J"]
    event = Straggler(t=1.0, e="straggler", rank=3, median=0.251, others=0.1, shows=shows)
    assert straggler_sentence(event, "node2") == (
        "rank 3 on node2 is slow: 251 ms a step, the others 100 ms (load 33 on 8 cores; it swaps 8 MiB/s)"
    )
    assert straggler_sentence({**event, "over": True}, "node2") == "rank 3 on node2 has caught up"
    seen = {"t": 1.0, "e": "straggler", "rank": 3, "median": "nan", "shows": None}
    assert straggler_sentence(decode(Straggler, seen), "\x1b") == "rank 3 on  is slow"
    with pytest.raises(MalformedRecordError, match="rank"):
        decode(Straggler, {**seen, "rank": "x"})


def test_one_late_step_makes_no_rank_slow() -> None:
    times = {rank: {"step_time": 2.0, "forward_time": 0.1} for rank in range(4)}
    state = stepping({**times, 2: {"step_time": 2.0, "forward_time": 0.3}})
    assert spread_sentence(state) == "the last step took 100 ms (rank 0 100 ms, rank 2 300 ms)"
    assert spread_sentence(stepping(times)) == "the last step took 100 ms on every rank"


def test_a_metric_that_only_some_ranks_have_compares_nothing() -> None:
    state = stepping({0: {"forward_time": 0.1, "step_time": 1.0}, 1: {"step_time": 3.0}})
    assert spread_sentence(state) == "the last step took 2.00 s (rank 0 1.00 s, rank 1 3.00 s)"
    assert spread_sentence(stepping({0: {"step_time": 1.0}})) is None
    assert spread_sentence(stepping({})) is None
