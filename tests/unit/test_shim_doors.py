"""A rank tells where it is through its doors, whatever its own code is doing."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.diagnose import hang
from disttui.runner.node import procs, sockets
from disttui.runner.node.observe import stacks
from disttui.runner.protocol.files import RankStacks
from disttui.runner.untrusted.decode import decode
from tests.command import ran
from tests.files import new_file, new_folder
from tests.kept import node_program
from tests.unit.waiting import wait_for

STUCK = """
import os, sys, time, threading
def load_batch():
    while True:
        time.sleep(0.05)
def helper():
    time.sleep(600)
threading.Thread(target=helper, name="prefetch", daemon=True).start()
print("up", flush=True)
load_batch()
"""
# The regular expression engine keeps the interpreter's lock.
HOLDING = "import re\nprint('up', flush=True)\nre.match('(a+)+$', 'a' * 60 + 'b')\n"

# Waits for a forked worker that hangs in the user's code, and for another program.
WAITING = """
import multiprocessing, subprocess, sys, time
class Corpus:
    def __getitem__(self, index):
        time.sleep(600)
def work(corpus):
    corpus[0]
worker = multiprocessing.get_context("fork").Process(target=work, args=(Corpus(),), daemon=True)
worker.start()
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
worker.join()
"""

# Goes on into another function as soon as its stack has been printed.
GOING_ON = """
import os
import time
path = os.path.join(os.environ["DISTTUI_DIR"], "rank-0.stacks")
def wait(size):
    while os.path.getsize(path) == size:
        time.sleep(0.01)
def load():
    wait(os.path.getsize(path))
def train():
    wait(os.path.getsize(path))
print("up", flush=True)
while True:
    load()
    train()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a rank with a script, and wait until the script says "up"."""
    attempt = new_folder(tmp_path / "attempt-1")
    children: list[subprocess.Popen[bytes]] = []

    def start_one(text: str, rank: int = 0, wait: bool = True, **env: str) -> subprocess.Popen[bytes]:
        script = new_file(tmp_path / f"job{rank}.py", text)
        known = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "DISTTUI_DIR": str(attempt),
            "DISTTUI_RUN": tmp_path.name, "DISTTUI_NODE": "0", "DISTTUI_ATTEMPT": "1",
        }  # fmt: skip
        children.append(
            subprocess.Popen(
                [sys.executable, "-u", node_program(), "shim", "script", script], env={**os.environ, **known, **env}
            )
        )
        log = attempt / f"rank-{rank}.log"
        wait_for(lambda: not wait or (log.exists() and b"up\n" in log.read_bytes()))
        return children[-1]

    yield start_one
    for child in children:
        child.kill()
        child.wait()


def noted(folder: Path) -> Any:
    """The answer of a rank that holds the lock: it is up a moment before it does."""

    def ask() -> Any:
        answer = stacks.collect(str(folder))["0"]
        return answer if "note" in answer else None

    return wait_for(ask)


def door_of(folder: Path) -> str:
    line = (folder / "attempt-1" / "ranks.jsonl").read_text().splitlines()[0]
    return str(json.loads(line)["door"])


def test_every_thread_tells_its_stack(start: Callable[..., Any], tmp_path: Path) -> None:
    start(STUCK, 0)
    start(STUCK, 1)
    (tmp_path / "attempt-2").mkdir()
    answers = stacks.collect(str(tmp_path))
    assert sorted(answers) == ["0", "1"]
    for rank, answer in answers.items():
        threads = {thread["name"]: thread for thread in answer["threads"]}
        assert sorted(threads) == ["MainThread", "prefetch"]
        main = threads["MainThread"]
        assert main["main"] and not threads["prefetch"]["main"]
        assert [frame["function"] for frame in main["frames"]] == ["<module>", "load_batch"]
        inner = main["frames"][-1]
        assert inner["file"] == str(tmp_path / f"job{rank}.py")
        assert (inner["line"], inner["text"]) in [(4, "while True:"), (5, "time.sleep(0.05)")]
        assert answer["recorder"] == {}


def test_a_rank_tells_its_step_and_since_when(start: Callable[..., Any], tmp_path: Path) -> None:
    """A bar that is drawn again at the same step is no step."""
    start(STUCK, 0)
    start(STUCK, 1)
    now = time.time()
    records = ({"t": now - 90, "step": 3}, {"t": now - 60, "step": 4}, {"t": now - 1, "step": 4, "steps_per_s": 0.1})
    (tmp_path / "attempt-1" / "rank-0.metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    answers = stacks.collect(str(tmp_path))
    assert answers["0"]["step"] == 4 and 60 <= answers["0"]["stepped"] < 90
    assert "step" not in answers["1"]


def test_rank_holding_the_gil_is_asked_by_signal(start: Callable[..., Any], tmp_path: Path) -> None:
    child = start(HOLDING)
    answer = noted(tmp_path)
    assert "by a signal" in answer["note"]
    assert 'job0.py", line 3' in answer["text"]
    kept = tmp_path / "attempt-1" / "rank-0.stacks"
    assert answer["text"] in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "attempt-1" / "rank-0.log").read_bytes() == b"up\n"
    assert child.poll() is None
    wait_for(lambda: noted(tmp_path)["moved"] is False)


def test_rank_too_slow_to_answer_is_not_reported_as_stalled(start: Callable[..., Any], tmp_path: Path) -> None:
    """On a machine with too much to do, imports were said to be "in _parse for 31 s", the time since the last log."""
    child = start(GOING_ON)
    reports = tmp_path / "attempt-1" / "ranks.jsonl"
    reports.write_text(reports.read_text().replace(door_of(tmp_path), "disttui-nobody"))
    wait_for(lambda: stacks.collect(str(tmp_path))["0"].get("moved"))
    assert child.poll() is None


def test_single_answer_is_compared_with_the_signal_dump() -> None:
    frames = [{"file": "/job.py", "function": name, "line": 9} for name in ("<module>", "load")]
    told = decode(RankStacks, {"threads": [{"name": "MainThread", "main": True, "frames": frames}], "recorder": {}})
    below = '  File "/job.py", line 3 in <module>\n  File "/_disttui/node/rank/shim.py", line 1 in run\n'
    for name, moved in (("load", False), ("train", True)):
        main = f'Current thread 0x2 (most recent call first):\n  File "/job.py", line 2 in {name}\n{below}'
        text = f'Thread 0x1 (most recent call first):\n  File "/a.py", line 1 in accept\n\n{main}'
        assert stacks._moved(told, {"text": text}) is moved
    assert stacks._moved(told, {"note": "the process has ended"}) is False


def test_a_program_that_took_the_signal_back_is_not_signalled(start: Callable[..., Any], tmp_path: Path) -> None:
    number = int(signal.SIGRTMIN) + 9
    child = start(f"import signal\nsignal.signal({number}, signal.SIG_DFL)\n" + HOLDING)
    answer = noted(tmp_path)
    assert "handles the signal" in answer["note"]
    assert child.poll() is None


def test_a_rank_that_has_ended_and_one_without_instruments(start: Callable[..., Any], tmp_path: Path) -> None:
    child = start(STUCK, 0)
    start(STUCK, 1, DISTTUI_INSTRUMENT="0")
    child.kill()
    child.wait()
    answers = stacks.collect(str(tmp_path))
    assert answers["0"]["note"] == "the process has ended"
    assert "not instrumented" in answers["1"]["note"]


def test_children_that_a_rank_waits_for_are_inspected(start: Callable[..., Any], tmp_path: Path) -> None:
    """The worker was invisible: "rank 0 is at the top level (job0.py:12, inside popen_fork.poll)"."""
    rank = start(WAITING)

    def seen() -> Any:
        answer = stacks.collect(str(tmp_path))["0"]
        return answer if any("__getitem__" in child.get("text", "") for child in answer.get("children", [])) else None

    answer = wait_for(seen)
    worker, other = answer["children"]
    try:
        read = hang.standing(0, "node1", decode(RankStacks, answer))
        told = hang.sentences([read])
        assert told[0].startswith("rank 0 is at the top level (job0.py:")
        assert told[1] == f"rank 0's child process {worker['pid']}: in __getitem__ (job0.py:5)"
        assert told[2].startswith(f"rank 0's child process {other['pid']} ({sys.executable} -c import time")
        assert re.search(r"\): no stack, (asleep( in \w+)?|running)$", told[2]), told[2]
        assert rank.poll() is None and (tmp_path / "attempt-1" / "rank-0.log").read_bytes() == b"up\n"
    finally:
        for child in (worker, other):
            os.kill(child["pid"], signal.SIGKILL)


def test_a_child_that_took_over_the_signal_is_not_signalled(start: Callable[..., Any], tmp_path: Path) -> None:
    """A program of its own may use the same signal for anything."""
    number = int(signal.SIGRTMIN) + 9
    program = f"import signal, sys; signal.signal({number}, lambda *_: sys.exit(9)); signal.pause()"
    lines = f"x = subprocess.Popen([sys.executable, '-c', {program!r}])", "print('up', flush=True)", "x.wait()"
    start("\n".join(["import subprocess, sys", *lines]))
    [child] = wait_for(lambda: stacks.collect(str(tmp_path))["0"].get("children"))
    wait_for(lambda: procs.catches(child["pid"], number))
    assert "text" not in stacks.collect(str(tmp_path))["0"]["children"][0]
    process = procs.read(child["pid"])
    assert process and not process.dead
    os.kill(child["pid"], signal.SIGKILL)


@pytest.mark.parametrize(
    "answer",
    [b"7", b"[]", b'{"threads": [1], "recorder": {}}', b'{"threads": 7}', b"[" * 100_000,
     b'{"threads": [{"main": true, "frames": [{}]}], "recorder": {}}'],
)  # fmt: skip
def test_nonsense_from_a_door_counts_as_not_instrumented(answer: bytes, tmp_path: Path) -> None:
    (tmp_path / "attempt-1").mkdir()
    process = procs.read(os.getpid())
    assert process
    with sockets.listen() as door:
        start = {"e": "start", "pid": process.pid, "start_time": process.start, "door": sockets.address_of(door)}
        ranks = [{**start, "rank": 0}, {**start, "rank": 1, "door": None}]
        (tmp_path / "attempt-1" / "ranks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in ranks))

        def answer_once() -> None:
            with door.accept()[0] as visitor:
                visitor.sendall(answer)

        script = threading.Thread(target=answer_once)
        script.start()
        found = stacks.collect(str(tmp_path))
        script.join()
    assert [one["note"] for one in found.values()] == ["this rank is not instrumented"] * 2


def test_endless_trickle_from_a_door_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "attempt-1").mkdir()
    process = procs.read(os.getpid())
    assert process
    said = 0
    with sockets.listen() as door:
        start = {"e": "start", "rank": 0, "pid": process.pid, "start_time": process.start}
        (tmp_path / "attempt-1/ranks.jsonl").write_text(json.dumps({**start, "door": sockets.address_of(door)}) + "\n")

        def trickle() -> None:
            nonlocal said
            with door.accept()[0] as visitor, suppress(OSError):
                while said < 5 << 20:
                    said += visitor.send(b" ")

        script = threading.Thread(target=trickle)
        script.start()
        found = stacks.collect(str(tmp_path))
        script.join()
    assert "note" in found["0"] and said < 4 << 20, said


def test_a_run_without_ranks_has_no_stacks(tmp_path: Path) -> None:
    assert stacks.collect(str(tmp_path)) == {}
    (tmp_path / "attempt-1").mkdir()
    assert stacks.collect(str(tmp_path)) == {}


@pytest.mark.root
def test_another_user_gets_no_answer(start: Callable[..., Any], tmp_path: Path) -> None:
    start(STUCK)
    name = door_of(tmp_path)
    ask = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + {name!r}); print(s.recv(9))"
    nobody = ran(["/usr/bin/python3", "-c", ask], user=65534, check=True)
    assert nobody.stdout == "b''\n"


def test_a_forked_worker_does_not_keep_the_door(start: Callable[..., Any], tmp_path: Path) -> None:
    child = start("import os, time\nif os.fork() == 0:\n    print('up', flush=True)\ntime.sleep(600)\n")
    name = door_of(tmp_path)
    wait_for(lambda: name in Path("/proc/net/unix").read_text())
    forks = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    child.kill()
    child.wait()
    wait_for(lambda: name not in Path("/proc/net/unix").read_text())
    os.kill(int(forks[0]), signal.SIGKILL)


@pytest.mark.torch
def test_the_flight_recorder_tells_who_has_not_come(start: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    text = f"""
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{port}", rank=int(os.environ["RANK"]), world_size=2)
x = torch.ones(2)
dist.all_reduce(x)
print("up", flush=True)
if dist.get_rank() == 1: time.sleep(600)
dist.all_reduce(x)
"""
    start(text, 0, wait=False)
    start(text, 1)

    def answered() -> Any:
        answers = stacks.collect(str(tmp_path))
        if not all("recorder" in answer for answer in answers.values()):
            return None  # one was too slow
        recorders: dict[str, Any] = {rank: answer["recorder"] for rank, answer in answers.items()}
        status = {rank: one["gloo"]["pg_status"]["0"] for rank, one in recorders.items()}
        enqueued = {rank: int(one["last_enqueued_collective"]) for rank, one in status.items()}
        return answers if enqueued["0"] > enqueued["1"] else None

    answers = wait_for(answered)
    main = next(thread for thread in answers["0"]["threads"] if thread["main"])
    assert main["frames"][-1]["function"] == "all_reduce"
    records = [line for line in (tmp_path / "attempt-1" / "ranks.jsonl").read_text().splitlines() if '"group"' in line]
    assert len(records) == 2 and all('"backend": "gloo"' in line for line in records)
