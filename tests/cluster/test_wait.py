"""`disttui wait` on real hosts: through a cut, from elsewhere, for a queued run."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.host import ClusterHost
from tests.cluster.typed import User, elsewhere, typed, wait_gone
from tests.unit.waiting import wait_for

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
        if (here / "fail").exists() and rank == 1:
            raise ValueError("bad batch")
        time.sleep(0.1)
"""


def waiting(me: User, *words: str) -> subprocess.Popen[str]:
    """A `disttui wait` that was started; it prints JSON."""
    return subprocess.Popen(
        me.command("wait", *words, "--json"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=me.home,
        env=me.environment(),
    )  # fmt: skip


def _node_programs(host: ClusterHost) -> list[int]:
    """Those that viewers have started."""
    return [pid for pid, command in host.processes() if "sys.stdin.buffer.readline" in command]


def _connects(viewer: subprocess.Popen[str], address: str) -> bool:
    """Whether it waits for a host's answer to a new connection."""
    (number,) = struct.unpack("<I", socket.inet_aton(address))
    rows = [row.split() for row in Path(f"/proc/{viewer.pid}/net/tcp").read_text().splitlines()[1:]]
    begun = {f"socket:[{row[9]}]" for row in rows if row[2].startswith(f"{number:08X}:") and row[3] == "02"}
    with suppress(FileNotFoundError):  # closed while they are looked at
        return any(str(file.readlink()) in begun for file in Path(f"/proc/{viewer.pid}/fd").iterdir())
    return False


def test_wait_answers_from_anywhere_and_through_a_cut(user: Callable[..., User]) -> None:
    me = user(2, light=True)
    profile = me.profile({"script": str(me.script(_JOB))})
    run = next(line for line in typed(me, "run", "--detach", profile).splitlines() if line.startswith("t-"))
    you = elsewhere(me)
    assert "met running" in typed(me, "wait", run, "--until", "running|stall", "--timeout", "60s", code=10)
    assert "still waiting" in typed(me, "wait", run, "--timeout", "1s", code=124)
    step = waiting(me, run, "--until", "step>=1000")
    end = waiting(me, run)
    theirs = waiting(you, run, "--host", "node2", "--trust-hosts")
    node2 = me.cluster[1]
    wait_for(lambda: all(len(_node_programs(host)) == 3 for host in me.cluster.hosts), "the links of all")
    node2.cut()
    wait_for(lambda: any(_connects(one, node2.address) for one in (step, end, theirs)), "one that notices it")
    node2.restore()
    (me.cluster.shared / "jump").touch()
    assert step.wait(100) == 11
    (me.cluster.shared / "fail").touch()
    assert [end.wait(100), theirs.wait(100)] == [1, 1]
    answers = [one.stdout.read() if one.stdout else "" for one in (end, theirs)]
    wait_gone(me.cluster)
    answers.append(typed(me, "wait", run, "--json", code=1))
    for answer in answers:
        [found] = json.loads(answer)["runs"]
        assert len(answer) <= 2048 and found["state"] == "failed" and "rank 1 on node2" in found["explain"]["cause"], (
            answer
        )
        assert found["explain"]["next"].startswith("disttui diagnose t-")
    # The others may have been told the cause by node1 and left before they had reached node2 again.
    assert found["explain"]["evidence"]["place"] == "job.py:15"
    assert "bad batch" in typed(me, "wait", run, code=1)
