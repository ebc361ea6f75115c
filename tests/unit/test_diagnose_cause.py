"""One cause per attempt, over all hosts, by the leader's clock."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.diagnosing import diagnose
from disttui.runner.api.viewer import Viewer
from disttui.runner.cli.render.run_story import run_json
from disttui.runner.diagnose.cause import causes, find
from disttui.runner.diagnose.frames import fold_traceback, frames
from disttui.runner.diagnose.hints import hint
from disttui.runner.render.diagnosis import diagnosis_data, diagnosis_text
from disttui.runner.render.story import attempt_words, others
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.runs.replay import replay
from disttui.runner.runs.state import RunState, begin
from disttui.runner.runs.store import HostStore
from tests.unit.state_kit import fold

_PEER = {"type": "RuntimeError", "message": "gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1"}


def seen(*events: tuple[int, dict[str, Any]]) -> RunState:
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
    assert find(seen()) is None


def test_consequences_are_folded_under_the_cause_in_any_order() -> None:
    events = [(0, error(0, 9.9, **_PEER)), (1, error(1, 10.0)), (2, death(2, 10.1, -15))]
    for order in permutations(events):
        cause = find(seen(*order))
        assert cause and cause.failure.rank == 1
        assert [one.rank for one in cause.consequences] == [0, 2]


_IN_WORKER = """  File "/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 308, in _worker_loop
    data = fetcher.fetch(index)
  File "/w/data.py", line 7, in __getitem__
    raise FileNotFoundError(2, "No such file or directory", "/data/a.bin")
FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'
"""


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("FileNotFoundError", "Caught FileNotFoundError in DataLoader worker process 0.\nOriginal {}"),
        ("RuntimeError", "Caught FileNotFoundError in replica 1 on device 1.\nOriginal {}"),
        ("RuntimeError", "Caught FileNotFoundError in pin memory thread for device 0.\nOriginal {}"),
        (
            "torch.multiprocessing.spawn.ProcessRaisedException",
            "\n\n-- Process 0 terminated with the following error:\n{}",
        ),
        ("ray.exceptions.RayTaskError(FileNotFoundError)", "ray::train() (pid=12, ip=10.0.0.1)\n"),
    ],
)
def test_an_exception_of_another_process_is_the_cause(kind: str, head: str) -> None:
    first = "Traceback (most recent call last):\n"
    message = head.format(first) + _IN_WORKER
    above = f'{first}  File "/w/train.py", line 20, in <module>\n    main()\n'
    for text in (f"{above}{kind}: {message}", ""):
        state = seen((0, error(0, 1.0, type=kind, message=message, traceback=text)))
        words = "raised FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'"
        assert attempt_words(state, 1) == f"rank 0 on node1 {words}"
    cut = error(0, 1.0, type=kind, message=message[: message.index("FileNotFoundError: ")])
    assert attempt_words(seen((0, cut)), 1).startswith(f"rank 0 on node1 raised {kind}: ")


def test_the_line_of_a_pools_process_is_that_of_the_cause() -> None:
    first = "Traceback (most recent call last):\n"
    inner = f'{first}  File "/w/data.py", line 7, in load\n    1 / 0\nZeroDivisionError: division by zero\n"""\n\n'
    outer = f'{first}  File "/w/train.py", line 9, in <module>\n    pool.map(load, files)\nZeroDivisionError: x'
    chained = "The above exception was the direct cause of the following exception:\n\n"
    for head in ("", 'multiprocessing.pool.RemoteTraceback: \n"""\n'):
        assert frames(f"{head}{inner}{chained}{outer}")[-1].place == "data.py:7"


def test_clocks_are_corrected() -> None:
    fast = (0, {"e": "clock", "node": 1, "offset": 100.0})
    assert blamed(seen(fast, (0, error(0, 50.0)), (1, error(1, 149.0)))) == 1
    assert blamed(seen((0, error(0, 50.0)), (1, error(1, 149.0)))) == 0


def test_a_signal_without_words_beats_the_tracebacks_it_caused() -> None:
    cause = find(seen((0, error(0, 10.2, **_PEER)), (1, death(1, 10.0, -9))))
    assert cause and (cause.failure.kind, cause.failure.code) == ("signal", -9)


def test_rank_ended_by_disttui_is_not_the_cause() -> None:
    stopping = (0, {"e": "stopping", "at": 5.0, "t": 5.0, "reason": "failure", "now": False})
    assert blamed(seen(stopping, (0, death(0, 5.5, -9)), (1, error(1, 6.0)))) == 1


def test_an_error_made_of_a_broken_connection_is_a_consequence() -> None:
    trace = (
        "Traceback (most recent call last):\nRuntimeError: Connection closed by peer\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\nTrainingFailed: step 3"
    )
    wrapped = error(0, 9.0, type="TrainingFailed", message="step 3", traceback=trace)
    assert blamed(seen((0, wrapped), (1, error(1, 10.0)))) == 1


def test_where_all_look_like_consequences_the_first_is_blamed() -> None:
    assert blamed(seen((0, error(0, 10.0, **_PEER)), (1, error(1, 9.0, **_PEER)))) == 1


def test_leader_names_the_cause_if_no_rank_failed() -> None:
    cause = {"node": 2, "rank": None, "kind": "host lost", "message": "no heartbeat", "at": 8.0, "last": 2.0}
    end = {"state": "failed", "code": 1, "attempt": 1, "cause": cause}
    state = fold(seen((0, error(0, 7.0, **_PEER))), 0, "exit.json", end)
    found = find(state)
    assert found and (found.failure.kind, found.failure.host, found.failure.last) == ("host lost", "node3", 2.0)


def test_nonsense_of_a_host_is_survived() -> None:
    state = seen((1, {"e": "error", "rank": "x", "at": 1}), (1, error(1, 2.0, traceback=None, type=7)))
    assert blamed(state) == 1
    state = fold(state, 0, "exit.json", {"state": "failed", "attempt": 1, "cause": {"node": 99, "at": "x"}})
    assert find(state) is not None


_WAITED = """\
Traceback (most recent call last):
  File "/home/alice/uneven.py", line 37, in <module>
    dist.all_reduce(tensor)
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2934, in all_reduce
    work.wait()
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:36001"""


def uneven(ended: float, peer: dict[str, str] | None = None) -> RunState:
    first = error(1, 9.2, **(peer or _PEER), traceback=_WAITED)
    state = seen((1, first), (1, death(1, 9.3, 1)), (0, death(0, 9.6, -15)))
    for rank, event in ((0, "rank"), (1, "rank"), (2, "rank")):
        state = fold(state, rank, "events.jsonl", {"t": 1.0, "e": event, "attempt": 1, "rank": rank})
    return fold(state, 0, "attempt-1/ranks.jsonl", {"t": ended, "e": "exit", "rank": 0, "code": 0})


def test_rank_that_ended_too_early_caused_broken_connections() -> None:
    state = uneven(ended=9.0)
    assert attempt_words(state, 1).startswith(
        "rank 0 on node1 had ended (exit code 0) while rank 1 on node2 still waited in all_reduce (uneven.py:37)"
    )
    cause = find(state)
    assert cause and others(state, cause) == ["stopped because of it: rank 2 on node3"]
    known = hint(state, cause)
    assert known and known.name == "uneven ends"


def test_who_had_ended_before_is_known_from_the_kept_files_too(tmp_path: Path) -> None:
    """What `show`, `diagnose` and a replay read: the mirror of a run that has ended."""
    files: dict[tuple[int, str], list[dict[str, Any]]] = {
        (0, "attempt-1/ranks.jsonl"): [{"t": 9.0, "e": "exit", "rank": 0, "code": 0}],
        (1, "events.jsonl"): [{**error(1, 9.2, **_PEER, traceback=_WAITED), "attempt": 1, "t": 9.2}],
        (0, "exit.json"): [{"t": 9.5, "state": "failed", "code": 1, "attempt": 1, "cause": None}],
    }
    for number, ((node, name), found) in enumerate(files.items()):
        store = HostStore(tmp_path / str(node))
        store.announce({"file": number, "name": name, "generation": 0, "start": 0})
        store.write(number, 0, b"".join(json.dumps(one).encode() + b"\n" for one in found))
        store.close()
    hosts = (KnownHost("node1", "node1", nproc=1), KnownHost("node2", "node2", nproc=1))
    run = KnownRun("t-1234", tmp_path, hosts, {}, "~/.disttui/runs", 0.0, "me")
    state = replay(run, tmp_path).state
    assert attempt_words(state, 1).startswith("rank 0 on node1 had ended (exit code 0) while rank 1 on node2 still")


def test_a_rank_that_ended_well_after_the_failure_is_not_blamed() -> None:
    cause = find(uneven(ended=9.4))
    assert cause and cause.gone == ()
    # What went wrong by itself is not excused by an early end of another.
    state = fold(seen((1, error(1, 9.2))), 0, "attempt-1/ranks.jsonl", {"t": 9.0, "e": "exit", "rank": 0, "code": 0})
    cause = find(state)
    assert cause and cause.gone == ()


@pytest.mark.parametrize(
    ("kind", "gone"),
    [("RuntimeError", (0,)), ("torch.distributed.DistBackendError", (0,)), ("DistNetworkError", (0,)),
     ("ConnectionRefusedError", ()), ("requests.exceptions.ConnectionError", ())],
)  # fmt: skip
def test_a_refusing_server_of_the_script_is_no_uneven_end(kind: str, gone: tuple[int, ...]) -> None:
    cause = find(uneven(9.0, {"type": kind, "message": "[Errno 111] Connection refused"}))
    assert cause and cause.gone == gone


def test_rank_ended_by_sigterm_is_not_called_waiting() -> None:
    state = fold(
        seen((1, death(1, 9.2, -15))), 0, "attempt-1/ranks.jsonl", {"t": 9.0, "e": "exit", "rank": 0, "code": 0}
    )
    assert attempt_words(state, 1).startswith("rank 1 on node2 ended with SIGTERM")


def test_ranks_with_the_same_exception_are_reported_together() -> None:
    """Also while it is not yet known how one of their processes ended."""
    state = seen((1, error(1, 2.0)), (1, death(1, 2.1, 1)), (0, error(0, 2.2)))
    cause = find(state)
    assert cause and others(state, cause) == ["the same error: rank 0 on node1"]


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


def three_attempts(end: str) -> list[tuple[str, dict[str, Any]]]:
    """(file, record) of a run whose first two attempts have failed, and which has ended like this."""
    events: list[dict[str, Any]] = [
        {"e": "attempt", "attempt": number, "master": "10.0.0.1", "port": 29500, "world_size": 2, "t": number}
        for number in (1, 2, 3)
    ]
    events += [
        {**error(1, 1.5, message="first"), "attempt": 1, "t": 1.5},
        {**death(0, 2.5, -9), "attempt": 2, "t": 2.5},
    ]
    events += [{"e": "stopping", "attempt": 3, "reason": "user", "now": False, "t": 3.4}]
    events += [{**death(0, 3.5, -15), "attempt": 3, "t": 3.5}]
    blamed = {"node": 0, "rank": 1, "kind": "exit", "code": 7, "at": 3.3} if end == "failed" else None
    exit_json = {"t": 4.0, "state": end, "code": 1, "attempt": 3, "left": [], "cause": blamed}
    return [*(("events.jsonl", event) for event in events), ("exit.json", exit_json)]


@pytest.mark.parametrize(("end", "last"), [("failed", [(3, 1, 7)]), ("stopped", []), ("finished", [])])
def test_every_attempt_that_has_failed_has_one_cause(end: str, last: list[Any]) -> None:
    state = begin("t-1", ("node1",), (2,))
    for file, record in three_attempts(end):
        state = fold(state, 0, file, record)
    found = [(one.attempt, one.failure.rank, one.failure.code) for one in causes(state)]
    assert found == [(1, 1, None), (2, 0, -9), *last]


def test_a_run_that_lives_tells_why_its_attempts_have_failed() -> None:
    state = begin("t-1", ("node1",), (2,))
    for file, record in three_attempts("failed")[:-1]:
        state = fold(state, 0, file, record)
    assert [one.attempt for one in causes(state)] == [1, 2]


def test_diagnose_tells_the_cause_of_every_attempt(tmp_path: Path) -> None:
    store = HostStore(tmp_path / "0")
    for number, name in enumerate(("events.jsonl", "exit.json")):
        data = b"".join(
            json.dumps(record).encode() + b"\n" for file, record in three_attempts("failed") if file == name
        )
        store.announce({"file": number, "name": name, "generation": 0, "start": 0})
        store.write(number, 0, data)
    store.close()
    run = KnownRun("t-1234", tmp_path, (KnownHost("node1", "node1", nproc=2),), {}, "~/.disttui/runs", 0.0, "me")
    viewer = Viewer({})
    found = diagnose(viewer, run)
    text = diagnosis_text(found)
    assert found.warnings == ()
    assert "attempt 1 failed: rank 1 on node1 raised ValueError: first" in text
    assert "attempt 2 failed: rank 0 on node1 ended with SIGKILL" in text
    assert "t-1234 failed" in text and "rank 1 on node1 ended with exit code 7" in text
    told_causes = json.loads(json.dumps(diagnosis_data(found)))["causes"]
    assert [(one["attempt"], one["rank"], one["kind"]) for one in told_causes] == [
        (1, 1, "exception"),
        (2, 0, "signal"),
        (3, 1, "exit"),
    ]
    shown = json.loads(json.dumps(run_json(run, replay(run, run.folder))))["causes"]
    assert [one["attempt"] for one in shown] == [1, 2, 3] and shown[0]["words"].endswith("ValueError: first")
