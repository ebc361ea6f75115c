"""Who keeps the gang waiting, from the stacks and flight recorders of all ranks."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.diagnose import hang
from disttui.runner.diagnose.doubts import spread_sentence, straggler_sentence
from disttui.runner.diagnose.frames import Frame, frames, own
from disttui.runner.diagnose.hang import Standing, awaited, rank_words, sentences, stacks, standings
from disttui.runner.node.rank import stack_server
from disttui.runner.protocol.events import Straggler
from disttui.runner.protocol.files import RankStacks
from disttui.runner.runs.state import RunState, begin
from disttui.runner.untrusted.decode import MalformedRecordError, decode
from tests.unit.state_kit import fold

_DATA = Path(__file__).parents[1] / "data" / "failures"


def standing(rank: int, host: str, answer: dict[str, Any], later: dict[str, Any] | None = None) -> Standing:
    """As a host's answer is read."""
    again = None if later is None else decode(RankStacks, later)
    return hang.standing(rank, host, decode(RankStacks, answer), again)


def loaded(name: str, **more: dict[str, Any]) -> list[Standing]:
    """The recorded answers; `more` changes that of a rank, by r<number>."""
    answers = json.loads((_DATA / f"{name}.json").read_text())
    return [
        standing(int(rank), f"node{int(rank) + 1}", {"silent": 62.0, **answer, **more.get(f"r{rank}", {})})
        for rank, answer in answers.items()
        if rank.isdigit()
    ]


def test_gloo_names_the_rank_that_has_not_entered() -> None:
    """Recorded from a real run: rank 1 sleeps in load_batch before the fourth all_reduce."""
    assert sentences(loaded("hang_gloo")) == [
        "ranks 0, 2 wait in all_reduce #4 (train.py:6); "
        "rank 1 has not entered it: it has been in load_batch (data.py:3) for 62 s"
    ]


def test_script_that_spawns_its_own_ranks_gets_a_cure() -> None:
    library = "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py"
    places = (
        ("/home/alice/train.py", 6, "<module>"),
        (library, 169, "join"),
        ("/usr/lib/python3.11/selectors.py", 415, "select"),
    )
    frames = [{"file": file, "line": line, "function": function} for file, line, function in places]
    ranks = [standing(rank, "node1", {"threads": [{"main": True, "frames": frames}], "silent": 9.0}) for rank in (0, 1)]
    told = sentences(ranks)
    assert told[0] == "ranks 0, 1 are waiting in torch.multiprocessing.spawn (train.py:6) for 9 s"
    assert told[1].startswith("this script starts its own processes") and "RANK, LOCAL_RANK and WORLD_SIZE" in told[1]


def test_the_rank_that_others_wait_for_is_the_one_to_look_at() -> None:
    assert awaited(loaded("hang_gloo")) == {1} and awaited(loaded("hang_nccl")) == {3}
    ranks = loaded("hang_gloo")
    ranks[1] = standing(1, "node2", {"note": "…", "state": "stopped", "pid": 77, "silent": 9.0})
    assert awaited(ranks) == {1}
    assert awaited([]) == frozenset()


def in_frames(rank: int, *places: tuple[str, str]) -> Standing:
    frames = [{"file": file, "line": 10, "function": function} for file, function in places]
    return standing(rank, f"node{rank + 1}", {"threads": [{"main": True, "frames": frames}], "silent": 40.0})


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("utils.py", "_verify_param_shape_across_processes"),
        ("utils.py", "_sync_params_and_buffers"),
        ("_functional_collectives.py", "wait_tensor"),
        ("distributed_c10d.py", "all_gather_coalesced"),
    ],
)
def test_rank_waiting_inside_torch_is_not_the_culprit(file: str, function: str) -> None:
    """Without a flight recorder: rank 0 wraps its model, or waits for a collective, and rank 1 loads data."""
    torch = "/venv/lib/python3.11/site-packages/torch"
    wraps = ("/home/a/train.py", "main"), (f"{torch}/nn/parallel/distributed.py", "__init__")
    ranks = [
        in_frames(0, *wraps, (f"{torch}/distributed/{file}", function)),
        in_frames(1, ("/home/a/train.py", "main"), ("/home/a/data.py", "load")),
    ]
    assert awaited(ranks) == {1}
    assert sentences(ranks)[0] == f"rank 0 is in {function} (train.py:10) for 40 s"


def test_importing_rank_is_located_in_its_module_not_in_python() -> None:
    """Recorded from accelerate's example, whose imports took more than half a minute."""
    files = ("/home/alice/nlp_example.py", "/venv/lib/python3.11/site-packages/sklearn/utils.py")
    frames = [{"file": file, "line": 16, "function": "<module>"} for file in files]
    for inner in ("<string>", "<frozen importlib._bootstrap>"):
        last = {"file": inner, "line": 0, "function": "<module>"}
        ranks = [standing(0, "node1", {"threads": [{"main": True, "frames": [*frames, last]}]})]
        assert sentences(ranks) == ["rank 0 is at the top level (nlp_example.py:16, inside utils.<module>)"]
        deep = [standing(0, "node1", {"threads": [{"main": True, "frames": [frames[1], last]}]})]
        assert sentences(deep) == ["rank 0 is at the top level (utils.py:16)"]


def test_identical_stacks_are_merged_and_the_odd_one_is_last() -> None:
    lines = stacks(loaded("hang_gloo"))
    assert lines[0] == "ranks 0, 2 (node1, node3):"
    assert lines[-4:] == [
        "rank 1 (node2):",
        "    /home/alice/train.py:15 <module>",
        "    /home/alice/train.py:13 main",
        "    /home/alice/data.py:3 load_batch",
    ]


def test_nccl_ranks_ahead_wait_in_the_first_missed_collective() -> None:
    """The shape of NCCL's recorder: numbers are numbers, ranks enqueue more before they wait at a synchronisation."""
    assert sentences(loaded("hang_nccl")) == [
        "ranks 0-2 wait in all_reduce #1580 (trainer.py:211); "
        "rank 3 has not entered it: it has been in __getitem__ (data.py:41) for 62 s"
    ]


def test_a_stopped_rank_is_named_with_the_way_out() -> None:
    ranks = loaded("hang_gloo")
    ranks[1] = standing(1, "node2", {"note": "…", "state": "stopped", "pid": 77, "silent": 9.0})
    assert sentences(ranks) == [
        "ranks 0, 2 wait in all_reduce #4 (train.py:6)",
        "rank 1 cannot answer: its process is stopped by a signal (SIGSTOP) or a debugger; "
        "`kill -CONT 77` on node2 resumes it",
    ]


def test_rank_holding_the_lock_is_read_from_faulthandler() -> None:
    text = (
        'Thread 0x00007f1 (most recent call first):\n  File "/home/alice/io.py", line 9 in prefetch\n\n'
        'Current thread 0x00007f2 (most recent call first):\n  File "/home/alice/native.py", line 3 in crunch\n'
        '  File "/home/alice/train.py", line 20 in <module>\n'
        '  File "/home/alice/.cache/disttui/node-1.zip/_disttui/become.py", line 84 in body\n'
        '  File "<frozen runpy>", line 88 in _run_code\n'
    )
    ranks = loaded("hang_gloo")
    ranks[1] = standing(1, "node2", {"text": text, "note": "holds the lock", "silent": 200.0})
    assert sentences(ranks)[1] == "rank 1 is in crunch (native.py:3) for 3:20"
    assert stacks(ranks)[-2:] == ["    /home/alice/train.py:20 <module>", "    /home/alice/native.py:3 crunch"]


def test_moving_rank_keeps_working() -> None:
    assert sentences(loaded("hang_gloo", r1={"moved": True}))[0].endswith("load_batch (data.py:3), and keeps working")


def test_of_ranks_at_one_place_those_that_move_are_named() -> None:
    ranks = [standing(rank, "node1", {**_at("step", 9), "silent": 40.0, "moved": rank > 1}) for rank in range(4)]
    assert sentences(ranks) == ["ranks 0-3 are in step (job.py:9); ranks 2, 3 keep working"]


def both_in(number: int, *, t: float, entered: float, **more: Any) -> dict[int, dict[str, Any]]:
    """The answers of two ranks that are both in one all_reduce."""
    entry = {
        "collective_seq_id": number,
        "profiling_name": "gloo:all_reduce",
        "process_group": ["0", "default_pg"],
        "time_created_ns": int(entered * 1e9),
    }
    status = {"0": {"last_enqueued_collective": str(number), "last_completed_collective": str(number - 1)}}
    recorder = {"gloo": {"pg_status": status, "entries": [entry]}}
    return {rank: {**_at("step", 9), "recorder": recorder, "t": t, "silent": 0.2, **more} for rank in (0, 1)}


def test_run_that_progresses_between_samples_is_not_a_hang() -> None:
    first, later = both_in(3633, t=100.0, entered=99.9), both_in(3650, t=102.4, entered=102.3)
    ranks = [standing(rank, "node1", answer, later[rank]) for rank, answer in first.items()]
    assert sentences(ranks) == ["ranks 0, 1 are in step (job.py:9), and keep working"]


def test_a_step_between_two_looks_is_a_sign_of_life() -> None:
    first, later = both_in(7, t=100.0, entered=60.0, step=4), both_in(7, t=102.4, entered=60.0, step=5)
    ranks = [standing(rank, "node1", answer, later[rank]) for rank, answer in first.items()]
    assert sentences(ranks) == ["ranks 0, 1 are in step (job.py:9), and keep working"]


def test_output_of_another_thread_does_not_count_as_progress() -> None:
    """tqdm's monitor redraws its bar while the main thread waits in a collective."""
    first, later = both_in(7, t=100.0, entered=60.0, silent=3.0), both_in(7, t=102.4, entered=60.0, silent=0.1)
    ranks = [standing(rank, "node1", answer, later[rank]) for rank, answer in first.items()]
    assert sentences(ranks)[0].startswith("ranks 0, 1 wait in all_reduce #7 (job.py:9) for 40 s, which all ranks have")


def test_handler_inside_a_collective_is_named_as_itself() -> None:
    """A signal came while the main thread waited; its handler never returns."""
    torch = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    places = (("/home/alice/train.py", 6, "<module>"), (torch, 9, "all_reduce"), ("/home/alice/train.py", 2, "save"))
    frames = [{"file": file, "line": line, "function": function} for file, line, function in places]
    ranks = [standing(0, "node1", {"threads": [{"main": True, "frames": frames}], "silent": 9.0})]
    assert sentences(ranks) == ["rank 0 is in save (train.py:2) for 9 s"] and not ranks[0].collective
    answers = both_in(7, t=100.0, entered=60.0)
    answers[0]["threads"] = [{"main": True, "frames": frames}]
    ranks = [standing(rank, "node1", answer, answer) for rank, answer in answers.items()]
    assert sentences(ranks) == [
        "ranks 0, 1 wait in all_reduce #7 (train.py:2, job.py:9); rank 0, inside it, is in save (train.py:2)"
    ]
    assert awaited(ranks) == {0}


def test_time_in_place_counts_from_the_last_collective() -> None:
    """As in an epoch without a line: each look may find it in `backward`."""
    answers = both_in(7, t=100.0, entered=99.0, silent=69.0)
    for answer in answers.values():
        answer["recorder"]["gloo"]["pg_status"]["0"]["last_completed_collective"] = "7"
    ranks = [standing(rank, "node1", answer) for rank, answer in answers.items()]
    assert sentences(ranks) == ["ranks 0, 1 are in step (job.py:9) for 1 s"]


def test_the_network_is_blamed_only_after_long() -> None:
    """All have entered: a moment after that it is as it should be, at any pace of the log."""
    new = [standing(rank, "node1", one, one) for rank, one in both_in(7, t=100.0, entered=98.0, silent=45.0).items()]
    assert sentences(new) == ["ranks 0, 1 wait in all_reduce #7 (job.py:9) for 2 s, which all ranks have entered"]
    old = [standing(rank, "node1", one, one) for rank, one in both_in(7, t=100.0, entered=60.0, silent=45.0).items()]
    assert sentences(old) == [
        "ranks 0, 1 wait in all_reduce #7 (job.py:9) for 40 s, which all ranks have entered: "
        "the network between them is slow or broken"
    ]


def test_rank_without_collectives_is_missing_in_the_first_one() -> None:
    """As recorded when rank 0 reads its data and the others wait for it: its recorder is empty."""
    ranks = [standing(0, "node1", {**_at("read_text", 53), "recorder": {}, "silent": 80})]
    entry = {"collective_seq_id": 1, "profiling_name": "gloo:broadcast", "process_group": ["0", "default_pg"]}
    status = {"0": {"last_enqueued_collective": "1", "last_completed_collective": "-1"}}
    waiting = {**_at("from_rank0", 82), "recorder": {"gloo": {"pg_status": status, "entries": [entry]}}}
    ranks += [standing(rank, f"node{rank + 1}", waiting) for rank in (1, 2)]
    assert sentences(ranks) == [
        "ranks 1, 2 wait in broadcast #1 (job.py:82); "
        "rank 0 has not entered it: it has been in read_text (job.py:53) for 80 s"
    ]


def _at(function: str, line: int) -> dict[str, Any]:
    return {"threads": [{"main": True, "frames": [{"file": "job.py", "line": line, "function": function}]}]}


def test_subgroups_with_one_number_are_not_mixed() -> None:
    """Each rank numbers the groups that it is in; only their names are common."""
    ranks = []
    for rank, (group, entered, completed) in enumerate([("5", 3, 2), ("5", 2, 2), ("9", 7, 7), ("9", 7, 7)]):
        entry = {
            "pg_id": 1, "process_group": [group, "undefined"], "collective_seq_id": entered,
            "profiling_name": "nccl:all_reduce",
        }  # fmt: skip
        status = {"1": {"last_enqueued_collective": entered, "last_completed_collective": completed}}
        recorder = {"nccl": {"pg_status": status, "entries": [entry]}}
        place = _at("step", 9) if rank != 1 else _at("save", 4)
        ranks.append(standing(rank, "h", {**place, "recorder": recorder, "silent": 50.0}))
    assert sentences(ranks) == [
        "rank 0 waits in all_reduce #3 of process group 5 (job.py:9); "
        "rank 1 has not entered it: it has been in save (job.py:4) for 50 s",
        "ranks 2, 3 are in step (job.py:9) for 50 s",
    ]


def test_the_recorder_keeps_the_newest_call_of_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names a group that was not used lately."""
    calls = [{"pg_id": 1, "number": 0}, *({"pg_id": 2, "number": number} for number in range(40))]
    bindings = types.SimpleNamespace(_dump_fr_trace_json=lambda: json.dumps({"entries": calls}))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", bindings)
    entries = stack_server._recorder()["gloo"]["entries"]
    assert [one["number"] for one in entries] == [0, 7, *range(8, 40)]  # type: ignore[typeddict-item]


def test_different_collectives_are_named() -> None:
    ranks = []
    for rank, (name, sizes) in enumerate([("gloo:all_reduce", [[4]]), ("gloo:broadcast", [[5]])]):
        entry = {
            "collective_seq_id": 7,
            "profiling_name": name,
            "input_sizes": sizes,
            "process_group": ["0", "default_pg"],
        }
        status = {"0": {"last_enqueued_collective": "7", "last_completed_collective": "6"}}
        frames = [{"file": "train.py", "line": 10 + rank, "function": "step"}]
        recorder = {"gloo": {"pg_status": status, "entries": [entry]}}
        ranks.append(standing(rank, "h", {"threads": [{"main": True, "frames": frames}], "recorder": recorder}))
    assert sentences(ranks) == [
        "the ranks call different collectives as #7: rank 0 calls all_reduce of [[4]] (train.py:10); "
        "rank 1 calls broadcast of [[5]] (train.py:11); look for a branch that only some ranks take"
    ]
    stepped = [replace(one, step=40.0 + one.rank) for one in ranks]
    assert "; logged last: rank 0 step 40, rank 1 step 41; look for a branch" in sentences(stepped)[0]


def test_the_package_of_an_installed_job_is_the_users_own() -> None:
    packages = "/env/lib/python3.12/site-packages"
    files = [f"{packages}/trl/scripts/grpo.py", f"{packages}/trl/trainer/grpo.py", f"{packages}/accelerate/utils.py",
             f"{packages}/torch/distributed/distributed_c10d.py"]  # fmt: skip
    stack = [Frame("<frozen runpy>", 1, "_run"), *(Frame(file, 7, "f") for file in files)]
    found = own(stack)
    assert found and found.file == files[1]
    assert own([Frame(files[3], 7, "f")]) == Frame(files[3], 7, "f")
    assert own([Frame("/home/u/train.py", 3, "main"), *stack]) == Frame("/home/u/train.py", 3, "main")


def test_without_torch_the_stacks_are_compared() -> None:
    def at(rank: int, line: int) -> Standing:
        frames = [{"file": "a.py", "line": line, "function": "work"}]
        return standing(rank, "h", {"threads": [{"main": True, "frames": frames}], "recorder": {}, "silent": 40})

    assert sentences([at(0, 5), at(1, 9), at(2, 5), at(3, 5)]) == [
        "ranks 0, 2, 3 are in work (a.py:5) for 40 s",
        "rank 1 is in work (a.py:9) for 40 s",
    ]


def test_ranks_outside_of_any_function_share_one_top_level() -> None:
    frames = [{"file": "a.py", "line": 3, "function": "<module>"}]
    ranks = [standing(rank, "h", {"threads": [{"main": True, "frames": frames}], "recorder": {}}) for rank in range(3)]
    assert sentences(ranks) == ["ranks 0-2 are at the top level (a.py:3)"]


def test_nonsense_is_survived_and_cannot_steer_the_terminal() -> None:
    frames = [{"file": "/x/\x1b[2Ja.py", "line": "x", "function": "f\n✗ forged"}]
    entries = [7, {"process_group": 7}, {"process_group": ["0"], "profiling_name": 7, "time_created_ns": "x"}]
    recorder = {"nccl": 7, "mpi": {"pg_status": {"0": 7}}, "gloo": {"pg_status": {"0": {}}, "entries": entries}}
    hostile = {"threads": [{"main": True, "frames": frames}], "recorder": recorder}
    text = "\n".join(sentences([standing(0, "h\n\x1b", hostile), standing(1, "h", {})]))
    assert "\x1b" not in text and len(text.split("\n")) == 2
    assert sentences([]) == []


def test_invalid_numbers_in_stacks_and_tracebacks_are_ignored() -> None:
    for digits in ("²", "9" * 5000):
        state = fold(begin("r-1", ("n1",), (1,)), 0, "events.jsonl", {"t": 1.0, "e": "rank", "attempt": 1, "rank": 0})
        ranks = {digits: {"note": "gone", "state": "ended"}}
        state = fold(state, 0, "stacks-1.json", {"t": 2.0, "attempt": 1, "ranks": ranks})
        assert standings(state) == []
        line = f'  File "a.py", line {digits}, in f'
        assert frames(f"Traceback (most recent call last):\n{line}\nValueError: x") == ()
        said = f'Current thread 0x1 (most recent call first):\n  File "a.py", line {digits} in f\n'
        assert stacks([standing(0, "n1", {"text": said, "note": "holds the lock"})]) == []


def test_the_newest_stacks_of_all_hosts_are_put_together() -> None:
    state = begin("t-1", ("node1", "node2"), (1, 1))
    state = fold(state, 0, "events.jsonl", {"t": 1.0, "e": "rank", "attempt": 1, "rank": 0})
    for node, number, t in ((0, 1, 5.0), (0, 2, 9.0), (1, 1, 5.0)):
        record = {"t": t, "attempt": 1, "ranks": {str(node): {"note": "gone", "state": "ended"}}}
        state = fold(state, node, f"stacks-{number}.json", record)
    assert [one.rank for one in standings(state)] == [0]
    state = fold(state, 1, "stacks-2.json", {"t": 9.5, "attempt": 1, "ranks": {"1": {"note": "", "state": "ended"}}})
    assert [one.rank for one in standings(state)] == [0, 1]


def test_ranks_in_words() -> None:
    assert rank_words([3]) == "rank 3"
    assert rank_words([0, 1, 3]) == "ranks 0, 1, 3"
    assert rank_words([7, 0, 1, 2, 3]) == "ranks 0-3, 7"


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
