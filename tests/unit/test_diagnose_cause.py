"""One cause per attempt, over all hosts, by the leader's clock."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from runner.diagnose.cause import find
from runner.diagnose.traceback import fold_traceback
from runner.run.state import RunState, begin, fold

_PEER = {"type": "RuntimeError", "message": "gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1"}


def told(*events: tuple[int, dict[str, Any]]) -> RunState:
    state = begin("t-1", ("node1", "node2", "node3"), (1, 1, 1))
    for node, event in events:
        state = fold(state, node, "events.jsonl", {"t": event.get("at", 0.0), "attempt": 1, **event})
    return state


def error(rank: int, at: float, **fields: Any) -> dict[str, Any]:
    return {"e": "error", "rank": rank, "at": at, "type": "ValueError", "message": "boom", "traceback": "", **fields}


def death(rank: int, at: float, code: int) -> dict[str, Any]:
    return {"e": "death", "rank": rank, "at": at, "code": code}


def blamed(state: RunState) -> int | None:
    cause = find(state)
    assert cause is not None
    return cause.failure.rank


def test_nothing_failed() -> None:
    assert find(told()) is None


def test_consequences_are_folded_under_the_cause_whoever_is_heard_first() -> None:
    events = [(0, error(0, 9.9, **_PEER)), (1, error(1, 10.0)), (2, death(2, 10.1, -15))]
    for order in permutations(events):
        cause = find(told(*order))
        assert cause and cause.failure.rank == 1
        assert [one.rank for one in cause.consequences] == [0, 2]


def test_clocks_are_corrected() -> None:
    fast = (0, {"e": "clock", "node": 1, "offset": 100.0})
    assert blamed(told(fast, (0, error(0, 50.0)), (1, error(1, 149.0)))) == 1
    assert blamed(told((0, error(0, 50.0)), (1, error(1, 149.0)))) == 0


def test_a_signal_without_words_beats_the_tracebacks_it_caused() -> None:
    cause = find(told((0, error(0, 10.2, **_PEER)), (1, death(1, 10.0, -9))))
    assert cause and (cause.failure.kind, cause.failure.code) == ("signal", -9)


def test_what_disttui_ended_is_no_cause() -> None:
    stopping = (0, {"e": "stopping", "at": 5.0, "t": 5.0, "reason": "failure", "now": False})
    assert blamed(told(stopping, (0, death(0, 5.5, -9)), (1, error(1, 6.0)))) == 1


def test_an_error_made_of_a_broken_connection_is_a_consequence() -> None:
    trace = (
        "Traceback (most recent call last):\nRuntimeError: Connection closed by peer\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\nTrainingFailed: step 3"
    )
    wrapped = error(0, 9.0, type="TrainingFailed", message="step 3", traceback=trace)
    assert blamed(told((0, wrapped), (1, error(1, 10.0)))) == 1


def test_where_all_look_like_consequences_the_first_is_blamed() -> None:
    assert blamed(told((0, error(0, 10.0, **_PEER)), (1, error(1, 9.0, **_PEER)))) == 1


def test_the_leaders_word_counts_where_no_rank_has_failed() -> None:
    cause = {"node": 2, "rank": None, "kind": "host lost", "message": "not heard of", "at": 8.0, "last": 2.0}
    end = {"state": "failed", "code": 1, "attempt": 1, "cause": cause}
    state = fold(told((0, error(0, 7.0, **_PEER))), 0, "exit.json", end)
    found = find(state)
    assert found and (found.failure.kind, found.failure.host, found.failure.last) == ("host lost", "node3", 2.0)


def test_nonsense_of_a_host_is_survived() -> None:
    state = told((1, {"e": "error", "rank": "x", "at": 1}), (1, error(1, 2.0, traceback=None, type=7)))
    assert blamed(state) == 1
    state = fold(state, 0, "exit.json", {"state": "failed", "attempt": 1, "cause": {"node": 99, "at": "x"}})
    assert find(state) is not None


_TRACE = """\
Traceback (most recent call last):
  File "/home/alice/train.py", line 15, in <module>
    main()
  File "/home/alice/train.py", line 12, in main
    loss = model(batch)
           ^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1762, in _call_impl
    return forward_call(*args, **kwargs)
  File "/home/alice/model.py", line 41, in forward
    raise ValueError("shape")
ValueError: shape"""


def test_library_frames_are_folded_and_the_users_stay_whole() -> None:
    assert fold_traceback(_TRACE) == [
        "Traceback (most recent call last):",
        '  File "/home/alice/train.py", line 15, in <module>',
        "    main()",
        '  File "/home/alice/train.py", line 12, in main',
        "    loss = model(batch)",
        "           ^^^^^^^^^^^^",
        "  … 2 frames of libraries, the last in module.py:1762 _call_impl",
        '  File "/home/alice/model.py", line 41, in forward',
        '    raise ValueError("shape")',
        "ValueError: shape",
    ]


def test_a_traceback_of_libraries_alone_stays_as_it_is() -> None:
    text = 'Traceback (most recent call last):\n  File "<frozen runpy>", line 3, in x\nOSError: \x1b[31mno\x1b[0m'
    assert fold_traceback(text)[-1] == "OSError: no"
    assert len(fold_traceback(text)) == 3
