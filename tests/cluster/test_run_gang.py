"""The built-in job on three hosts, 1 + 2 + 1 processes: one world, the losses of one process, killed and resumed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from disttui.runner.hosts.ship import train_parcel
from tests.cluster.typed import Running, User

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

_JOB = [
    *("--steps", "150", "--global-batch", "8", "--lr", "1e-3", "--warmup", "4", "--layers", "2", "--heads", "2"),
    *("--width", "32", "--context", "16", "--val-interval", "10", "--val-batches", "2", "--checkpoint-interval", "5"),
]

Curve = dict[tuple[int, str], float]


def _curve(records: list[dict[str, float]]) -> Curve:
    names = ("loss", "val_loss")
    return {(int(one["step"]), name): one[name] for one in records for name in names if name in one}


def _alone(folder: Path, args: list[str]) -> Curve:
    """The curve of one process without any launcher."""
    (folder / "train.zip").write_bytes(train_parcel().data)
    metrics = folder / "alone.metrics.jsonl"
    env = {
        "PATH": os.environ["PATH"],
        "DISTTUI_METRICS": str(metrics),
        "DISTTUI_CHECKPOINTS": str(folder / "checkpoints"),
    }
    subprocess.run([sys.executable, folder / "train.zip", *args], env=env, cwd=folder, check=True, capture_output=True)
    return _curve([json.loads(line) for line in metrics.read_text().splitlines()])


def test_three_hosts_train_as_one_process_does(user: Callable[..., User]) -> None:
    """DDP with a rank killed on the way, and FSDP, both give the losses of a single process to 1e-4."""
    me = user(3)
    data = me.cluster.shared / "text"
    data.write_text(" ".join(random.Random(0).choices(["to be", "or not", "that", "is", "the question"], k=4000)))
    args = [*_JOB, "--data", str(data)]
    expected = _alone(me.home, args)
    assert len(expected) == 150 + 15

    hosts = ["node1", {"host": "node2", "num_processes": 2}, "node3"]
    profile = me.profile({"builtin": "bytegpt", "args": args}, hosts, launch={"restarts": 1})
    running = me.start(profile, "--set", "parallel.strategy=ddp")
    _kill_a_rank_after_the_first_checkpoint(me, running)
    assert running.wait(200) == 0, running.stderr
    running.wait_gone(10)
    events = running.records("events.jsonl")
    for attempt in (1, 2):
        groups = [one for one in events if one["e"] == "group" and one["attempt"] == attempt]
        assert sorted((one["rank"], one["world_size"]) for one in groups) == [(rank, 4) for rank in range(4)]
    first, second = (_curve(running.records(f"attempt-{attempt}/rank-0.metrics.jsonl")) for attempt in (1, 2))
    assert 5 <= max(first)[0] < 150
    assert 5 < min(second)[0] <= max(first)[0] + 1, "it did not go on from its last checkpoint"
    assert {**second, **first} == pytest.approx(expected, abs=1e-4)
    assert {**first, **second} == pytest.approx(expected, abs=1e-4)

    sharded = me.run(profile, "--set", "parallel.strategy=fsdp", timeout=200)
    assert _curve(sharded.records("attempt-1/rank-0.metrics.jsonl")) == pytest.approx(expected, abs=1e-4)
    assert "finished" in sharded.stderr
    assert "4 ranks on 3 hosts" in sharded.stderr


def _kill_a_rank_after_the_first_checkpoint(me: User, running: Running) -> None:
    # The whole training takes a second or two: the others wait for a rank that runs for moments only.
    ranks: list[int] = []

    def look() -> bool:
        found = me.cluster[1].processes()  # the launcher's words include those of its ranks
        ranks[:] = [pid for pid, words in found if " shim " in words and " torchrun " not in words and " -u " in words]
        return len(ranks) == 2

    running.wait_for(look)
    runs = me.cluster[0].home / ".disttui/runs"
    deadline = time.monotonic() + 100
    while not any(one.read_bytes().count(b"\n") > 6 for one in runs.glob("*/0/*/rank-0.metrics.jsonl")):
        assert time.monotonic() < deadline, running.stderr
        os.kill(ranks[0], signal.SIGCONT)
        time.sleep(0.02)
        os.kill(ranks[0], signal.SIGSTOP)
    os.kill(ranks[0], signal.SIGSTOP)
    running.wait_for(lambda: any(runs.glob("*/checkpoints/*[0-9]/bytegpt.json")))
    os.kill(ranks[0], signal.SIGKILL)
