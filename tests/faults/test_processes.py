"""Processes that are killed: supervisors, wardens, launchers, ranks."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from textwrap import indent
from typing import Any

import pytest

from disttui.runner.ids import short
from tests.cluster.typed import User, typed, wait_gone
from tests.faults.kit import COUNT, LATE, NASTY, Fault, wait_until
from tests.groups import memory_killer

pytestmark = pytest.mark.torch

Begin = Callable[..., Fault]


@pytest.mark.parametrize("who", [["supervisor"], ["warden", "supervisor"]], ids=" and ".join)
@pytest.mark.parametrize("node", [1, 0], ids=["follower", "leader"])
def test_a_host_loses_its_supervisor(begin: Begin, node: int, who: list[str]) -> None:
    """Its warden, or the next viewer, ends what is left; the other hosts act on it within 2 s, and end."""
    fault = begin(3, light=True)
    fault.kill(node, *who)
    killed = time.time()
    other = 2
    seen = fault.wait_event(other, "stopping", 10)
    print(f"the others act {seen['t'] - killed:.2f} s after the kill")
    assert seen["t"] - killed < 2 + LATE
    fault.end(1)
    typed(fault.me, "stop", fault.run)
    fault.exits("failed", (node,))
    cause = json.loads((fault.folder(node) / "exit.json").read_text())["cause"]
    assert cause["kind"] == "supervisor lost" and "killed" in cause["message"], cause
    name = fault.hosts[node].name
    assert name in fault.verdict() and "supervisor" in fault.verdict(), fault.story()
    fault.whole()


def test_frozen_supervisor_is_killed_by_stop_now(begin: Begin) -> None:
    """A plain stop names the process and the way; the command that follows the run ends with it."""
    fault = begin(1, launch={"grace": 2})
    fault.kill(0, "supervisor", sends="STOP")
    said = typed(fault.me, "stop", fault.run, code=3)
    assert "frozen by a signal" in said and f"disttui stop {fault.run} --now" in said, said
    assert f"stopped on {fault.hosts[0].name}" in typed(fault.me, "stop", fault.run, "--now")
    fault.end(130)
    fault.exits("stopped")
    fault.whole()


@pytest.mark.parametrize(
    ("who", "words"),
    [("launcher", "torchrun on node2 was ended by SIGKILL"), ("rank", "rank 1 on node2 ended with SIGKILL")],
    ids=["launcher", "rank"],
)
def test_a_launcher_or_a_rank_is_killed(begin: Begin, who: str, words: str) -> None:
    """The run ends with the one cause, on every host at once."""
    fault = begin(2)
    fault.kill(1, who)
    killed = time.time()
    fault.end(1)
    print(f"nothing is left {fault.ended_at() - killed:.2f} s after the kill")
    assert fault.ended_at() - killed < 2 + LATE
    assert words in fault.verdict() and "node2" in fault.verdict(), fault.story()
    fault.exits("failed")
    fault.whole(fetch=False)


@pytest.mark.parametrize("by", ["script", "command"])
def test_unreported_exception_is_printed_once_and_last(user: Callable[..., User], by: str) -> None:
    """Ranks without instruments, and commands: what their logs end with is held back while they run."""
    me = user(2)
    boom = "        if rank == '1' and step > 9:\n            raise ValueError('boom')\n"
    text = COUNT.replace("step += 1\n", "step += 1\n" + boom)
    script = str(me.script(text))
    job = {"script": script, "args": ["never"]} if by == "script" else {"command": [sys.executable, script, "never"]}
    running = me.run(me.profile(job, launch={"instrument": False}), code=1)
    assert running.stderr.rstrip().endswith("\n│ ValueError: boom"), running.stderr
    assert "rank 1 on node2 raised ValueError" in running.stderr
    assert (running.stdout + running.stderr).count("ValueError: boom") == 1, running.stdout[-3000:] + running.stderr


@pytest.mark.parametrize("played", [False, True], ids=["by the kernel", "as far as counters tell"])
def test_a_rank_is_killed_for_memory(begin: Begin, played: bool) -> None:
    """The kernel's killer takes the rank, not its supervisor, and the story says so."""
    with memory_killer(played) as hoard:
        greedy = 'if rank == "1":\n' + indent(hoard, "    ")
        fault = begin(2, COUNT.replace("step = 0\n", f"step = 0\n{greedy}\n"), light=True, wait=False)
        fault.end(1)
    assert "rank 1 on node2 ended with SIGKILL" in fault.verdict(), fault.story()
    assert "out-of-memory killer" in fault.running.stderr, fault.story()
    fault.exits("failed")
    fault.whole(fetch=False)


@pytest.mark.parametrize("by", ["a stop", "its supervisor's death"])
def test_a_nasty_job(begin: Begin, by: str) -> None:
    """A deaf rank, daemons and fork storms: nothing is left within grace + 1.5 s."""
    fault = begin(2, NASTY, launch={"grace": 2})
    if by == "a stop":
        typed(fault.me, "stop", fault.run)
        fault.end(130)
        fault.exits("stopped")
    else:
        fault.kill(1, "supervisor")
        fault.end(1)
        fault.exits("failed")
    # A host without a supervisor does not report when it began to end; the leader asks the other one to end.
    for node in (0, 1) if by == "a stop" else (0,):
        took = fault.ended_at(node) - fault.events(node, "stopping")[0]["t"]
        print(f"nothing is left on node{node + 1} after {took:.2f} s")
        assert took < 2 + 1.5 + LATE
    fault.whole(fetch=False)


def test_process_that_reuses_a_supervisor_pid_is_left_alone(begin: Begin) -> None:
    """A supervisor's pid was given anew: its run is lost all the same, and the stranger is left alone."""
    fault = begin(1, light=True)
    host, me = fault.hosts[0], fault.me
    # No viewer may settle it in passing.
    fault.running.process.kill()
    fault.running.process.wait()
    wait_until(lambda: not any("sys.path[:1]" in command for _, command in host.processes()))
    fault.kill(0, "warden", "supervisor")
    stranger = int(host.run("sleep 300 >/dev/null 2>&1 & echo $!", check=True).stdout)
    path = fault.folder(0) / "supervisor.json"
    up: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**up, "pid": stranger, "warden": {**up["warden"], "pid": stranger}}))
    assert "lost" in typed(me, "ps")
    assert "already" in typed(me, "stop", fault.run)
    fault.exits("failed")
    # The session of `stop` ends on the host some time after the command here.
    wait_until(lambda: [command for _, command in host.processes()] == ["sleep 300"], 10, lambda: str(host.processes()))
    host.run(f"kill {stranger}", check=True)
    wait_gone(me.cluster, 10)
    fault.whole()


def test_ranks_without_supervisor_warden_and_run_folder(begin: Begin) -> None:
    """No supervisor is left to end them and no folder lists them: `disttui runs orphans` finds and ends them by tag."""
    fault = begin(2, NASTY, light=True, launch={"grace": 1})
    me, second = fault.me, fault.hosts[1]
    # No viewer may settle it in passing.
    fault.running.process.kill()
    fault.running.process.wait()
    wait_until(lambda: not any("sys.path[:1]" in command for _, command in second.processes()))
    folder = fault.folder(1)
    fault.kill(1, "warden", "supervisor")
    shutil.rmtree(folder)
    wait_until(lambda: not fault.hosts[0].processes(), 60, fault.story)
    assert "no processes of ended runs left on node1" in typed(me, "runs orphans", "node1")
    assert second.processes()
    seen = typed(me, "runs orphans", "node2")
    assert re.search(rf"{short(fault.run)} +node2 .* its run folder was removed ", seen), seen
    assert "left behind. End them: disttui runs orphans --end node2" in seen
    assert "ended, nothing is left" in typed(me, "runs orphans", "--end", "node2")
    wait_gone(me.cluster, 10)
    assert "no processes of ended runs left" in typed(me, "runs orphans", "node2")
