"""The same runs under every launcher, on two hosts: the losses, the root cause, and a stop that leaves nothing."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import frameworks
from tests.cluster.cluster import Cluster
from tests.cluster.typed import User

pytestmark = [pytest.mark.torch, pytest.mark.frameworks, pytest.mark.openmpi, pytest.mark.timeout(400)]

LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "mpirun", "deepspeed")
_JOB = [
    *("--steps", "6", "--global-batch", "6", "--lr", "1e-3", "--warmup", "2", "--layers", "1", "--heads", "2"),
    *("--width", "16", "--context", "16", "--val-interval", "6", "--val-batches", "1"),
]
_RAISE_ONCE = """
import json, os, sys, time
with open(os.environ["DISTTUI_METRICS"], "a") as file:
    file.write(json.dumps({"step": int(os.environ["DISTTUI_ATTEMPT"])}) + "\\n")
if os.environ["DISTTUI_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
    while open(os.environ["DISTTUI_DIR"] + "/rank-1.metrics.jsonl").read() == "":
        pass
    time.sleep(1)
    raise ValueError("boom of rank 1")
print("ready", sys.argv[1:], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], flush=True)
time.sleep(600)
"""


_BOTH_WORLDS = """
import ctypes, os
import torch
import torch.distributed as dist
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
names = ("comm_world", "int", "op_sum")
world, whole, add = (ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_" + name)) for name in names)
mpi.MPI_Init(None, None)
size, rank, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_size(world, ctypes.byref(size))
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Allreduce(ctypes.byref(ctypes.c_int(rank.value + 1)), ctypes.byref(total), 1, whole, add, world)
dist.init_process_group("gloo")
summed = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(summed)
print("mpi", rank.value, size.value, total.value, "torch", dist.get_rank(), dist.get_world_size(), summed.item(),
      "host", os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"], flush=True)
dist.destroy_process_group()
mpi.MPI_Finalize()
"""


@pytest.fixture(scope="module")
def user(requires_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    with Cluster(2) as cluster:
        one = User(cluster, tmp_path_factory.mktemp("user"))
        yield one
        one.close()


def _profile(user: User, launcher: str, job: dict[str, object], unequal: bool, **launch: object) -> Path:
    hosts = ["node1", {"host": "node2", "num_processes": 2 if unequal else 1}]
    return user.profile(job, hosts, python=str(frameworks.PYTHON), launch={"launcher": launcher, **launch})


def test_bytegpt_has_the_same_losses_under_every_launcher(user: User) -> None:
    data = user.cluster.shared / "text"
    data.write_text(" ".join(random.Random(0).choices(["to be", "or not", "that", "is", "the question"], k=2000)))
    curves = {}
    for launcher in LAUNCHERS:
        unequal = launcher in ("accelerate", "mpirun")
        running = user.run(
            _profile(user, launcher, {"builtin": "bytegpt", "args": [*_JOB, "--data", str(data)]}, unequal)
        )
        print(launcher, running.stderr.splitlines()[-2])
        events = running.records("events.jsonl")
        assert {one["world_size"] for one in events if one["e"] == "group"} == {3 if unequal else 2}, launcher
        records = running.records("attempt-1/rank-0.metrics.jsonl")
        curves[launcher] = [one["loss"] for one in records if "loss" in one]
    assert len(curves["torchrun"]) == 6
    for launcher, curve in curves.items():
        assert curve == pytest.approx(curves["torchrun"], abs=1e-4), launcher


@pytest.mark.parametrize("launcher", ("accelerate-launch", "mpirun", "deepspeed"))
def test_a_raising_rank_is_the_cause_and_a_stop_leaves_nothing(user: User, launcher: str) -> None:
    """The first attempt ends with the error of rank 1 alone; the second is stopped by Ctrl-C."""
    script = user.script(_RAISE_ONCE)
    running = user.start(_profile(user, launcher, {"script": str(script), "args": ["--lr", "1"]}, False, restarts=1))
    running.wait_for(lambda: running.stdout.count("ready ") >= 3)
    first = ["--local_rank=0"] if launcher == "deepspeed" else []
    assert f"ready {[*first, '--lr', '1']} 2 0" in running.stdout
    running.send(signal.SIGINT)
    assert running.wait() == 130, running.stderr
    running.wait_gone(10)
    print(running.stderr)
    assert "rank 1 on node2 raised ValueError: boom of rank 1" in running.stderr


def test_under_mpirun_scripts_see_one_mpi_world_over_all_hosts(user: User) -> None:
    script = user.script(_BOTH_WORLDS, "worlds.py")
    running = user.run(_profile(user, "mpirun", {"script": str(script)}, True))
    lines = sorted(line.partition("mpi ")[2] for line in running.stdout.splitlines() if "mpi " in line)
    where = {0: "0 0", 1: "1 0", 2: "1 1"}
    assert lines == [f"{rank} 3 6 torch {rank} 3 6 host {place}" for rank, place in where.items()], running.stdout
