"""`disttui wait` on real hosts: within half a second of the event, through a cut, from elsewhere, for a queued run."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.cluster.typed import POLL, User, elsewhere, typed, wait_gone

pytestmark = pytest.mark.torch

_JOB = """
import json, os, pathlib, time

here = pathlib.Path(__file__).parent
rank = int(os.environ["RANK"])
step = 0
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    while True:
        step += 1
        jumped = (here / "jump").exists()
        record = {"t": time.time(), "step": 1000 if jumped else step, "loss": 1.0}
        metrics.write(json.dumps(record) + "\\n")
        metrics.flush()
        if jumped and rank == 1:
            raise ValueError("bad batch")
        time.sleep(0.1)
"""


def waiting(me: User, *words: str) -> subprocess.Popen[str]:
    """A `disttui wait` that was started; it prints JSON."""
    return subprocess.Popen(
        me.command("wait", *words, "--json"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=me.home,
        env=me.environment(),
    )  # fmt: skip


def test_wait_answers_soon_from_anywhere_and_through_a_cut(user: Callable[..., User]) -> None:
    me = user(2)
    profile = me.profile({"script": str(me.script(_JOB))})
    run = next(line for line in typed(me, "run", "--detach", profile).splitlines() if line.startswith("t-"))
    you = elsewhere(me)
    assert "met running" in typed(me, "wait", run, "--until", "running|stall", "--timeout", "60s", code=10)
    assert "still waiting" in typed(me, "wait", run, "--timeout", "1s", code=124)
    step = waiting(me, run, "--until", "step>=1000")
    end = waiting(me, run)
    theirs = waiting(you, run, "--host", "node2", "--trust-hosts")
    time.sleep(15)  # all are connected by then, also on a loaded machine
    me.cluster[1].cut()
    time.sleep(8)
    me.cluster[1].restore()
    time.sleep(4)
    (me.cluster.shared / "jump").touch()
    jumped = time.time()
    ends: dict[str, float] = {}
    deadline = time.monotonic() + 60
    started = {"step": step, "end": end, "theirs": theirs}
    while len(ends) < len(started) and time.monotonic() < deadline:
        ends |= {name: time.time() for name, one in started.items() if name not in ends and one.poll() is not None}
        time.sleep(POLL)
    assert {name: one.wait(1) for name, one in started.items()} == {"step": 11, "end": 1, "theirs": 1}
    # Half a second on an idle machine: the rank's own 0.1 s, the harvest, the link, and the end of the command.
    assert ends["step"] - jumped < 3 and ends["end"] - jumped < 6, (jumped, ends)
    for one in (end, theirs):
        answer = one.stdout.read() if one.stdout else ""
        [found] = json.loads(answer)["runs"]
        assert len(answer) <= 2048 and found["state"] == "failed" and "rank 1 on node2" in found["explain"]["cause"], (
            answer
        )
        assert found["explain"]["evidence"]["place"] == "job.py:15" and found["explain"]["next"].startswith(
            "disttui diagnose t-"
        )
    wait_gone(me.cluster)
    assert "bad batch" in typed(me, "wait", run, code=1)
