"""Starting, starting again and stopping where these meet each other, strangers and neighbours."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.typed import User
from tests.faults.kit import LATE, Fault, wait_until

pytestmark = pytest.mark.torch

Begin = Callable[..., Fault]


def test_stop_during_the_switch_to_the_next_attempt(user: Callable[..., User]) -> None:
    """Right after the death, when the next attempt is announced, and when its launcher has the word."""
    me = user(2)
    for kind, fields in (("death", {"attempt": 1}), ("note", {}), ("launch", {"attempt": 2})):
        fault = Fault.begin(me, launch={"restarts": 3})
        fault.kill(1, "rank")
        fault.wait_event(1 if kind == "death" else 0, kind, 30, **fields)
        sent = fault.running.send(signal.SIGINT)
        fault.end(130)
        print(f"stopped at {kind}: nothing is left after {fault.ended_at() - sent:.2f} s")
        assert fault.ended_at() - sent < 2 + LATE
        fault.exits("stopped")
        assert not (fault.folder(0) / "attempt-3").exists()
        fault.whole(fetch=False)


_STRANGER = """
import socket, struct, sys, time

held = []
for number in range(600):
    one = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
    try:
        if number % 3 == 1:
            one.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n" + bytes(range(256)))
        elif number % 3 == 2:
            one.sendall(struct.pack(">I", 60) + b'{"n": 0, "m": {"k": "hello", "node": 1}, "h": "00"}' + b" " * 9)
    except OSError:
        pass
    held.append(one)
time.sleep(float(sys.argv[3]))
"""


def test_strangers_at_the_gangs_port(user: Callable[..., User]) -> None:
    """600 connections that say nothing, HTTP or a forged hello, while hosts join and later; ports that are taken."""
    me = user(2)
    script = me.script(_STRANGER, "stranger.py")
    first, second = me.cluster.hosts
    taken = "import socket, time; s = socket.create_server(('', 29500)); print(1, flush=True); time.sleep(20)"
    first.run(f'"{sys.executable}" -c "{taken}" >/dev/null 2>&1 & echo $!', check=True)
    fault = Fault.begin(me, wait=False)
    wait_until(fault.started)
    place = fault.wait_event(0, "listen")
    assert place["port"] != 29500
    visit = f"'{sys.executable}' {script} {first.address} {place['port']} 3"
    second.run(visit, check=True)
    fault.wait_steps(1)
    second.run(visit, check=True)
    steps = max(fault.steps(node) for node in range(2))
    fault.wait_steps(steps + 5)
    assert not fault.events(0, "host"), fault.story()
    fault.finish()
    fault.end(0)
    fault.exits("finished")
    fault.whole(fetch=False)


def test_the_same_profile_twice_at_once(user: Callable[..., User]) -> None:
    """Two runs share the hosts and nothing else: each has its own ports, files and end."""
    me = user(2)
    one, other = Fault.begin(me, wait=False), Fault.begin(me, wait=False)
    for fault in (one, other):
        fault.wait_steps(1)
    assert one.events(0, "listen")[0]["port"] != other.events(0, "listen")[0]["port"]
    one.running.send(signal.SIGINT)
    assert one.running.wait() == 130
    one.exits("stopped")
    other.wait_steps(other.steps(0) + 5)
    other.finish()
    other.end(0)
    other.exits("finished")
    one.whole(fetch=False)
    other.whole(fetch=False)


STEPS, EVERY = 2000, 50
_SMALL = [
    "--steps", str(STEPS), "--checkpoint-interval", str(EVERY), "--layers", "1", "--width", "32", "--heads", "1",
    "--context", "16", "--batch-size", "4", "--val-interval", "0", "--sample", "0",
]  # fmt: skip


@pytest.mark.timeout(900)
def test_a_training_that_loses_a_rank_three_times(user: Callable[..., User]) -> None:
    """It ends trained, with the losses of an undisturbed run from each checkpoint on.

    DISTTUI_KILL_SEED says which rank is killed at which step; the seed is printed.
    """
    seed = int(os.environ.get("DISTTUI_KILL_SEED", random.SystemRandom().randrange(10**6)))
    dice = random.Random(seed)
    # Far enough apart for a checkpoint between them: two deaths at one step would rightly end the run.
    moments = [dice.randint(third + 2 * EVERY, third + 600) for third in (0, 600, 1200)]
    print(f"\nDISTTUI_KILL_SEED={seed}: a rank is killed from steps {moments} on")
    me = user(2)
    # Threads that spin for each other on a busy machine would make a step of 4 ms one of 100.
    profile: dict[str, Any] = {
        "job": {"builtin": "bytegpt", "args": _SMALL, "env": {"OMP_NUM_THREADS": "1"}},
        "launch": {"restarts": 3},
    }
    calm = me.run(me.profile(name="calm", **profile), timeout=300)
    assert calm.process.returncode == 0
    number = len(me.started)
    running = me.start(me.profile(name=f"t{number}", **profile))
    fault = Fault(me, running, f"t{number}", me.cluster.shared / "none")
    for attempt, moment in enumerate(moments, 1):
        _wait_step(fault, attempt, moment)
        fault.kill(dice.randrange(2), "rank")
        killed = time.time()
        again = fault.wait_event(0, "step", 120, attempt=attempt + 1)
        print(f"attempt {attempt + 1} makes its first step {again['t'] - killed:.1f} s after the kill")
    fault.end(0, 300)
    fault.exits("finished")
    fault.whole(fetch=False)
    undisturbed = _losses(me, "calm", 1)
    assert sorted(undisturbed) == list(range(1, STEPS + 1))
    reached = 0
    for attempt in (1, 2, 3, 4):
        losses = _losses(me, fault.name, attempt)
        begun = min(losses)
        assert (begun - 1) % EVERY == 0 and sorted(losses) == list(range(begun, max(losses) + 1))
        assert reached - 2 * EVERY < begun <= reached + 1, "not from the newest checkpoint"
        reached = max(losses)
        for step, loss in losses.items():
            assert loss == pytest.approx(undisturbed[step], rel=1e-5), f"attempt {attempt}, step {step}"
    assert reached == STEPS


def _wait_step(fault: Fault, attempt: int, step: int) -> None:
    fault.running.wait_for(lambda: _newest(fault, attempt) >= step, 200)


def _newest(fault: Fault, attempt: int) -> int:
    """The step that rank 0 has come to in an attempt, 0 before its first."""
    path = fault.folder(0) / f"attempt-{attempt}/rank-0.metrics.jsonl" if fault.started() else None
    if path is None or not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().rpartition(b"\n")[0].splitlines()[1:]
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _losses(me: User, name: str, attempt: int) -> dict[int, float]:
    [path] = me.home.glob(f".local/share/disttui/runs/{name}-*/0/attempt-{attempt}/rank-0.metrics.jsonl")
    records = map(json.loads, path.read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}
