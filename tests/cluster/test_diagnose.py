"""Failures that fool torchrun, and hangs, on real hosts with real torchrun: the one cause, and who is missing."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.typed import Running, User
from tests.command import ran
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.torch

_INSIDE = """
import os, pathlib, signal, sys, time
import torch, torch.distributed as dist

here = pathlib.Path(__file__).parent
dist.init_process_group("gloo")
dist.barrier()
rank = dist.get_rank()
"""


def _failed(user: Callable[..., User], body: str, hosts: list[Any] | None = None) -> str:
    me = user(2)
    profile = me.profile({"script": str(me.script(_INSIDE + body))}, hosts, launch={"grace": 2})
    running = me.run(profile, code=1, merged=True)
    return running.stdout


def test_both_hosts_claim_the_cause_in_the_same_second(user: Callable[..., User]) -> None:
    """Rank 0 turns the broken connection into an error of its own at once, on the host that torchrun asks first."""
    body = """
try:
    if rank == 1:
        raise ValueError("the loss is nan")
    dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    raise SystemError("training failed") from error
"""
    shown = _failed(user, body)
    [headline] = [line for line in shown.splitlines() if line.startswith("✗")]
    assert headline.endswith("rank 1 on node2 raised ValueError"), shown
    assert shown.rstrip().splitlines()[-1] == "│ ValueError: the loss is nan"


@pytest.mark.parametrize("deaf", [False, True])
def test_a_sigkill_that_only_torchrun_saw(user: Callable[..., User], deaf: bool) -> None:
    """The killed rank's supervisor sleeps until torchrun has said it, which may still wait for its other rank."""
    body = f"""
if rank == 2 and {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.barrier()
if rank == 1:
    import subprocess
    with open(f"/proc/{{os.getppid()}}/stat") as file:
        supervisor = int(file.read().rpartition(")")[2].split()[1])
    then = "until [ -e $DISTTUI_DIR/launcher.json ]; do sleep 0.1; done; sleep 1; kill -CONT $0; sleep 60"
    subprocess.Popen(["sh", "-c", then, str(supervisor)], start_new_session=True)
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 2:
    time.sleep(600)
dist.all_reduce(torch.ones(1))
"""
    shown = _failed(user, body, ["node1", {"host": "node2", "num_processes": 2}])
    [headline] = [line for line in shown.splitlines() if line.startswith("✗")]
    assert "rank 1 on node2 ended with SIGKILL" in headline, shown
    assert "stopped because of it: rank 0 on node1" in shown, shown


_HANG = """
import torch, torch.distributed as dist
from data import load_batch

def train_step(number):
    dist.all_reduce(torch.ones(4))
    print("step", number, flush=True)

dist.init_process_group("gloo")
for number in range(3):
    train_step(number)
if dist.get_rank() == 1:
    load_batch()
train_step(3)
"""
_DATA = """
import time

def load_batch():
    time.sleep(900)
"""


def test_a_hang_of_a_foreign_script(user: Callable[..., User]) -> None:
    """`disttui diagnose` says it at once, the live view by itself after half a minute; the stacks are mirrored."""
    me = user(3)
    me.script(_DATA, "data.py")
    running = me.start(me.profile({"script": str(me.script(_HANG, "train.py"))}, launch={"grace": 2}))
    running.wait_for(lambda: running.stdout.count("step 2") == 3)
    pattern = (
        r"ranks 0, 2 wait in all_reduce #4 \(train\.py:6\); "
        r"rank 1 has not entered it: it has been in load_batch \(data\.py:5\) for \d+ s"
    )
    seen = _diagnose(me)
    assert re.search(pattern, seen), seen
    assert "rank 1 (node2):" in seen and "data.py:5 load_batch" in seen
    data = json.loads(_diagnose(me, "--json"))
    assert data["state"] == "running" and re.search(pattern, data["sentences"][0])
    assert sorted(data["ranks"]) == ["0", "1", "2"]
    running.wait_for(lambda: re.search(pattern, running.stderr) is not None)
    assert running.stderr.count("asking every rank for its stack") == 1
    assert all((_mirror(me) / str(node) / "stacks-1.json").exists() for node in range(3))
    _stop(running)
    for after in (running.stderr, _diagnose(me)):
        assert re.search(f"(?<!when )it stalled: {pattern}", after), after
    said = _diagnose(me).partition("while it was running, at ")[2]
    assert re.search(pattern, said) and "data.py:5 load_batch" in said, "what the ranks did is kept with the run"


def test_a_rank_of_bytegpt_is_stopped(user: Callable[..., User]) -> None:
    """A rank under SIGSTOP cannot answer: it is named, with the way to let it go on. Before that all is well."""
    me = user(3)
    args = ["--steps", "100000", "--layers", "1", "--width", "16", "--heads", "1", "--context", "16"]
    running = me.start(me.profile({"builtin": "bytegpt", "args": args}, launch={"grace": 2}))
    running.wait_for(lambda: _lines(me, "1/attempt-1/rank-1.metrics.jsonl") > 2)
    events = map(json.loads, (_mirror(me) / "1/events.jsonl").read_text().splitlines())
    [pid] = [event["pid"] for event in events if event["e"] == "rank"]
    for _ in range(3):
        seen = _diagnose(me)
        assert re.search(r", and keeps? working\b", seen) and not re.search(r"slow or broken|ranks 0-2 wait", seen), (
            seen
        )
    me.cluster[1].run(f"kill -STOP {pid}", check=True)
    # Where the signal comes between the two hops of gloo's ring, one of them is through and waits in the next already.
    ahead = r"rank ([02]) waits in \w+ #\d+.*; rank [02] has not entered it: it (?:is|has been) in \w+"
    waiting = rf"ranks 0, 2 wait in \w+ #\d+|{ahead}"
    wait_for(lambda: re.search(waiting, _diagnose(me)), "the ranks that wait")
    seen = _diagnose(me)
    me.cluster[1].run(f"kill -CONT {pid}", check=True)
    assert re.search(waiting, seen), seen
    stopped = rf"rank 1 cannot answer: its process is stopped .* `kill -CONT {pid}` on node2 resumes it"
    assert re.search(stopped, seen), seen
    _stop(running)


def test_bytegpt_waits_for_its_data(user: Callable[..., User]) -> None:
    """Rank 0 reads its data from a pipe that nobody writes to, the others wait for it."""
    me = user(3)
    for host in me.cluster.hosts:
        host.run("mkfifo /tmp/corpus", check=True)
    running = me.start(me.profile({"builtin": "bytegpt", "args": ["--data", "/tmp/corpus"]}, launch={"grace": 2}))
    pattern = (
        r"ranks 1, 2 wait in (\w+) #\d+ .*rank 0 has not entered it: it (?:is|has been) in read_text \(corpus\.py:\d+"
    )
    wait_for(lambda: _lines(me, "2/events.jsonl") and re.search(pattern, _diagnose(me)), "the diagnosis", 90)
    _stop(running)


def _mirror(me: User) -> Path:
    [folder] = (me.home / ".local/share/disttui/runs").iterdir()
    return folder


def _lines(me: User, name: str) -> int:
    found = list(me.home.glob(f".local/share/disttui/runs/*/{name}"))
    return len(found[0].read_text().splitlines()) if found else 0


def _diagnose(me: User, *options: str) -> str:
    command = me.command("diagnose", *options, _mirror(me).name)
    done = ran(command, env=me.environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def _stop(running: Running) -> None:
    running.send(signal.SIGINT)
    assert running.wait() == 130
    running.wait_gone(10)
