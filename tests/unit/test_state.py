"""The fold gives the same state for every interleaving of the hosts' files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttui.runner.diagnose.cause import find
from disttui.runner.diagnose.hints import hint
from disttui.runner.protocol.cause import Cause, root
from disttui.runner.runs.contents import metrics_place
from disttui.runner.runs.state import RunState, begin, link
from tests.unit.state_kit import fold

Feed = tuple[int, str, dict[str, Any]]


def story(node: int) -> list[dict[str, Any]]:
    """A host's events over two attempts."""
    events: list[dict[str, Any]] = [{"e": "supervisor", "pid": 7, "hostname": f"h{node}"}]
    if node == 0:
        events += [{"e": "listen", "port": 29500, "addresses": ["10.0.0.1"]}, {"e": "join", "node": 0}]
        events += [{"e": "waiting", "missing": [1, 2]}, {"e": "join", "node": 1}, {"e": "join", "node": 2}]
        events += [{"e": "clock", "node": 1, "offset": 0.5}, {"e": "host", "node": 2, "state": "not seen"}]
        events += [{"e": "host", "node": 2, "state": "seen"}]
    else:
        events += [{"e": "dial", "address": "10.0.0.1", "port": 29500, "problem": "refused"}]
    for attempt in (1, 2):
        events += [
            {"e": "attempt", "attempt": attempt, "master": "10.0.0.1", "port": 29501, "world_size": 3},
            {"e": "launch", "attempt": attempt, "pid": 9, "command": [], "interface": "eth0"},
            {"e": "rank", "attempt": attempt, "rank": node, "local_rank": 0, "pid": 10, "world_size": 3},
            {"e": "group", "attempt": attempt, "rank": node, "world_size": 3, "backend": "gloo"},
            {"e": "error", "attempt": attempt, "rank": node, "type": "ValueError", "message": "boom", "traceback": ""},
            {"e": "failed", "attempt": attempt, "cause": {"node": 0, "rank": 0}},
            {"e": "stopping", "attempt": attempt, "reason": "failure", "now": False},
        ]
    events += [{"e": "note", "level": "warning", "text": "x"}, {"e": "verdict", "state": "failed", "code": 1}]
    return [{"t": 100.0 + node + i / 10, **event} for i, event in enumerate(events)]


def files() -> list[list[Feed]]:
    feeds: list[list[Feed]] = []
    for node in range(3):
        feeds.append([(node, "events.jsonl", event) for event in story(node)])
        for attempt in (1, 2):
            name = f"attempt-{attempt}/rank-{node}.metrics.jsonl"
            values = [{"t": 200.0 + s, "step": s, "steps": 9, "loss": 5.0 - s / 10 - node} for s in range(4)]
            feeds.append([(node, name, value) for value in values])
        feeds.append([(node, "attempt-2/ranks.jsonl", {"t": 1.0, "e": "exit", "rank": node, "code": 0})])
        feeds.append([(node, "telemetry.jsonl", {"t": float(i), "cpu": i * 10}) for i in range(3)])
        feeds.append([(node, "exit.json", {"state": "failed", "code": 1})])
    return feeds


def run_fold(feeds: list[Feed]) -> RunState:
    state = begin("demo-1234", ("a", "b", "c"), (1, 1, 1))
    for node, name, record in feeds:
        state = fold(state, node, name, record)
    return state


EXPECTED = run_fold([feed for file in files() for feed in file])


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_every_interleaving_gives_the_same_state(random: Any) -> None:
    left = files()
    mixed: list[Feed] = []
    while left:
        chosen = random.choice(left)
        mixed.append(chosen.pop(0))
        left = [file for file in left if file]
    assert run_fold(mixed) == EXPECTED


def test_what_the_state_says() -> None:
    assert EXPECTED.world_size == 3
    assert EXPECTED.attempt == 2
    assert EXPECTED.metrics["step"] == 3
    assert EXPECTED.metrics["loss"] == 4.7, "the newest loss of the lowest rank"
    assert EXPECTED.first_loss == 5.0
    assert EXPECTED.result == {"state": "failed", "code": 1}
    leader = EXPECTED.hosts[0].story
    assert leader.joined == {0, 1, 2}
    assert leader.missing == ()
    assert leader.unseen == {}
    assert leader.offsets == {1: 0.5}
    assert EXPECTED.hosts[1].story.dials == {"10.0.0.1:29500": "refused"}
    assert EXPECTED.hosts[1].telemetry == {"t": 2.0, "cpu": 20}


def test_the_first_value_of_a_metric_is_kept_whenever_it_comes() -> None:
    state = begin("r", ("a",), (1,))
    for record in ({"loss": 5.0}, {"loss": 4.0, "val_loss": 1.0}, {"loss": 3.0, "val_loss": 0.5}):
        state = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", record)
    series = state.hosts[0].series[1, 0]
    assert series.first == {"loss": 5.0, "val_loss": 1.0}
    assert series.latest == {"loss": 3.0, "val_loss": 0.5}


def test_the_result_waits_for_the_leader_or_for_all() -> None:
    state = begin("r", ("a", "b"), (1, 1))
    state = fold(state, 1, "exit.json", {"state": "stopped", "code": 130})
    assert state.result is None
    assert fold(state, 0, "exit.json", {"state": "finished", "code": 0}).result == {"state": "finished", "code": 0}


def test_unknown_files_and_events_change_nothing() -> None:
    state = begin("r", ("a",), (1,))
    assert fold(state, 0, "spec.json", {"x": 1}) == state
    assert fold(state, 0, "attempt-1/ranks.jsonl", {"x": 1}) == state
    changed = fold(state, 0, "events.jsonl", {"t": 5.0, "e": "from the future"})
    assert changed.hosts[0].story.attempts == {}


def test_metrics_places() -> None:
    assert metrics_place("attempt-2/rank-13.metrics.jsonl") == (2, 13)
    for name in ("attempt-2/rank-13.log", "rank-1.metrics.jsonl", "attempt-x/rank-1.metrics.jsonl", "spec.json"):
        assert metrics_place(name) is None


def test_stalls_stragglers_and_alarms_last_until_they_are_over() -> None:
    state = begin("r", ("a", "b"), (1, 2))
    seen: list[dict[str, object]] = [
        {"e": "stall", "attempt": 1, "stacks": "stacks-1.json"},
        {"e": "straggler", "attempt": 1, "rank": 2, "median": 2.0},
        {"e": "alarm", "kind": "disk", "text": "full"},
    ]
    for number, event in enumerate(seen):
        state = fold(state, 0, "events.jsonl", {"t": float(number), **event})
    story = state.hosts[0].story
    assert story.stall and list(story.slow) == [2] and list(story.alarms) == ["full"]
    for number, event in enumerate(seen):
        state = fold(state, 0, "events.jsonl", {"t": 9.0 + number, **event, "over": True})
    story = state.hosts[0].story
    assert (story.stall, dict(story.slow), dict(story.alarms)) == (None, {}, {})
    again: dict[str, object] = {"t": 20.0, "e": "attempt", "attempt": 2, "master": "a", "port": 1, "world_size": 3}
    fired: dict[str, object] = {"e": "alarm", "kind": "watch", "text": "loss is nan", "value": None}
    for event in (seen[2], fired, again):
        state = fold(state, 0, "events.jsonl", {"t": 19.0, **event})
    assert list(state.hosts[0].story.alarms) == ["full"], "a rule was judged in the attempt before"
    assert [state.host_of(rank) for rank in (0, 1, 2, 3, "x", -1)] == ["a", "b", "b", "?", "?", "?"]


@pytest.mark.parametrize("begins", ["queued: ", "in line: "])  # the second: of earlier versions
def test_the_wait_in_the_queue_is_no_part_of_a_runs_duration(begins: str) -> None:
    state = begin("r", ("a",), (1,))
    assert state.elapsed == 0
    waits = {"t": 100.0, "e": "note", "level": "info", "text": f"{begins}a: bob's llama-02c1 holds GPU 0"}
    turn = {"t": 700.0, "e": "attempt", "attempt": 1, "master": "a", "port": 1, "world_size": 1}
    state = fold(state, 0, "events.jsonl", {"t": 99.0, "e": "supervisor"})
    state = fold(state, 0, "events.jsonl", waits)
    state = fold(state, 0, "telemetry.jsonl", {"t": 650.0})
    assert (state.began, state.elapsed) == (0, 0)
    state = fold(state, 0, "events.jsonl", turn)
    state = fold(state, 0, "telemetry.jsonl", {"t": 710.0})
    assert (state.began, state.elapsed) == (700, 10)
    state = fold(state, 0, "events.jsonl", {**turn, "t": 750.0, "attempt": 2})
    state = fold(state, 0, "exit.json", {"t": 760.0, "state": "finished", "code": 0})
    assert (state.began, state.elapsed) == (700, 60)


def test_a_run_took_what_its_hosts_say_and_no_viewers_clock() -> None:
    """`run`, `attach`, `show` and `diagnose` show the same: none counts from when it or its command began."""
    state = fold(begin("r", ("a",), (1,)), 0, "events.jsonl", {"t": 99.0, "e": "supervisor"})
    state = fold(state, 0, "exit.json", {"t": 136.5, "state": "stopped", "code": 130})
    assert state.elapsed == 37.5


def test_elapsed_time_of_a_lost_leader_is_by_its_clock() -> None:
    """The end came from a host whose clock was two hours ahead, and the run had taken two hours more."""
    state = fold(begin("r", ("a", "b"), (1, 1)), 0, "events.jsonl", {"t": 700.0, "e": "join", "node": 0})
    state = fold(state, 0, "events.jsonl", {"t": 701.0, "e": "clock", "node": 1, "offset": 7200.0})
    state = link(fold(state, 1, "exit.json", {"t": 7960.0, "state": "lost", "code": 1}), 0, "gone")
    assert state.elapsed == 60


_INVENTED: dict[str, Callable[[int], dict[str, Any]]] = {
    "rank": lambda i: {"attempt": 1, "rank": i, "local_rank": 0, "pid": 7},
    "group": lambda i: {"attempt": 1, "rank": i, "world_size": 2, "backend": "gloo"},
    "error": lambda i: {"attempt": 1, "rank": i, "type": "E", "message": "m", "at": 1.0, "traceback": ""},
    "attempt": lambda i: {"attempt": i, "master": "a", "port": 1, "world_size": 2},
    "note": lambda i: {"level": "warning", "text": f"x{i}"},
    "alarm": lambda i: {"kind": "disk", "text": f"x{i}", "value": 1},
    "straggler": lambda i: {"attempt": 1, "rank": i, "median": 2.0, "others": 1.0, "shows": []},
    "dial": lambda i: {"address": f"a{i}", "port": 1, "problem": "p"},
}


def _entries(value: Any) -> int:
    """The size of the largest collection in a part of the state."""
    if isinstance(value, Mapping):
        return max(len(value), *map(_entries, value.values()), 0)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return max(len(value), *map(_entries, value), 0)
    return max(map(_entries, vars(value).values()), default=0) if is_dataclass(value) else 0


@pytest.mark.parametrize("kind", _INVENTED)
def test_a_host_that_invents_events_without_end_fills_no_memory(kind: str) -> None:
    state = begin("r", ("a",), (1,))
    for number in range(5000):
        state = fold(state, 0, "events.jsonl", {"t": 1.0, "e": kind, **_INVENTED[kind](number)})
    assert 1000 < _entries(state.hosts[0].story) < 5000


def test_implausibly_many_gpus_ranks_and_metrics_are_bounded() -> None:
    many = range(40_000)
    state = begin("r", ("a",), (1,))
    gpus = [{"index": index, "use": 1.0} for index in many]
    use = {str(rank): {"cpu": 1.0, "rss": 1.0} for rank in many}
    state = fold(state, 0, "telemetry.jsonl", {"t": 1.0, "gpus": gpus, "ranks": use})
    telemetry = state.hosts[0].telemetry
    assert telemetry and [gpu["index"] for gpu in telemetry["gpus"]] == list(range(64))
    assert len(telemetry["ranks"]) == 1024
    left = [{"pid": pid, "command": "c"} for pid in many]
    state = fold(state, 0, "events.jsonl", {"t": 1.0, "e": "left", "processes": left})
    assert len(state.hosts[0].story.left) < 1000
    silent = {str(rank): 5.0 for rank in many}
    stall = {"attempt": 1, "since": 1.0, "pace": 1.0, "silent": silent, "stacks": "stacks-1.json"}
    state = fold(state, 0, "events.jsonl", {"t": 1.0, "e": "stall", **stall})
    stalled = state.hosts[0].story.stall
    assert stalled and len(stalled["silent"]) < 20_000
    for number in range(20):
        names = {f"{number}.{name}": 1.0 for name in range(9000)}
        state = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", {"t": 1.0, "step": number, **names})
    latest = state.hosts[0].series[1, 0].latest
    assert len(latest) < 9000 and latest["step"] == 19


@pytest.mark.parametrize(("rank", "node"), [(0, 1), (1, 0), (-1, 0), (2, 1)])
def test_metrics_of_a_rank_of_another_host_are_refused(rank: int, node: int) -> None:
    state = begin("r", ("a", "b"), (1, 1))
    with pytest.raises(ValueError, match="no rank of this host"):
        fold(state, node, f"attempt-1/rank-{rank}.metrics.jsonl", {"t": 1.0, "step": 1})


def test_of_endless_attempts_the_newest_keep_their_metrics() -> None:
    state = begin("r", ("a",), (2,))
    for attempt in range(100, 0, -1):
        for rank in (0, 1):
            state = fold(state, 0, f"attempt-{attempt}/rank-{rank}.metrics.jsonl", {"t": 1.0, "step": 1})
    kept = sorted({attempt for attempt, _ in state.hosts[0].series})
    assert kept == list(range(kept[0], 101)) and 4 < len(kept) < 50


def test_a_metric_with_an_endless_name_is_left_out() -> None:
    state = begin("r", ("a",), (1,))
    state = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", {"t": 1.0, "loss": 2.0, "x" * 5000: 1.0})
    assert set(state.hosts[0].series[1, 0].latest) == {"t", "loss"}


def test_a_record_keeps_the_lists_of_a_measurement() -> None:
    """`check --train` reads the pairs of ranks and what is wrong from the records of its job."""
    record = {"t": 1.0, "step": 7, "phase": "done", "wrong_results": ["sum"], "pairs": [[1, 0.05, 1e9, 0.1]]}
    state = fold(begin("r", ("a",), (1,)), 0, "attempt-1/rank-0.metrics.jsonl", record)
    assert state.hosts[0].series[1, 0].latest == record


@pytest.mark.parametrize("one_way", [True, False])
def test_node_0_names_the_nodes_of_a_job_of_slurm_alone(one_way: bool) -> None:
    state = begin("r", ("a", "b"), (1, 1), one_way=one_way)
    state = fold(state, 0, "spec.json", {"job": "7", "hosts": ["n1", "n2"]})
    assert [host.name for host in state.hosts] == (["n1", "n2"] if one_way else ["a", "b"])


def test_what_a_rank_says_is_as_short_as_its_host_makes_it() -> None:
    words = "e" * 300_000
    cause = {"node": 0, "rank": 0, "kind": "exception", "message": words}
    error = {"t": 1.0, "e": "error", "attempt": 1, "rank": 0, "type": words, "message": words, "traceback": words}
    state = begin("r", ("a",), (1,))
    for file, record in (
        ("events.jsonl", error),
        ("events.jsonl", {"t": 2.0, "e": "failed", "attempt": 1, "cause": cause}),
        ("exit.json", {"t": 3.0, "state": "failed", "code": 1, "cause": cause}),
    ):
        state = fold(state, 0, file, record)
    attempt, end = state.hosts[0].story.attempts[1], state.hosts[0].exit
    assert end and attempt.cause
    said = [attempt.errors[0].get("message"), attempt.cause.get("message"), (end.get("cause") or {}).get("message")]
    assert [len(str(one)) for one in said] == [4096] * 3
    assert len(str(attempt.errors[0].get("traceback"))) == 65536
    found = find(state)
    assert found and hint(state, found) is None


@pytest.mark.parametrize("words", ["nccl", "connection was ", "failed to recv, ", "remote process "])
def test_a_long_message_is_looked_through_once(words: str) -> None:
    cause = Cause(node=0, rank=0, kind="exception", type="E", message=words * 200_000, code=1, at=1.0)
    assert root([cause]) == cause
