"""Several hosts, played by one machine on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from disttui.runner.node import ports, procs
from tests.unit.runs_kit import SLEEP, Make, same
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


def test_three_unequal_hosts_train(cluster: Make) -> None:
    run = cluster("step(1)", [1, 2, 1]).start()
    assert same(run)["state"] == "finished"
    assert [e["node"] for e in run.events(0, "join")] == [0, 1, 2] or len(run.events(0, "join")) == 3
    ranks = [e["rank"] for node in range(3) for e in run.events(node, "rank")]
    assert sorted(ranks) == [0, 1, 2, 3]
    assert {e["world_size"] for node in range(3) for e in run.events(node, "rank")} == {4}
    clocks = {e["node"]: e["offset"] for e in run.events(0, "clock")}
    assert set(clocks) == {1, 2}
    assert set(clocks.values()) == {0.0}, "they share a clock, however slow their heartbeats are"
    for node in (1, 2):
        went = run.events(node, "attempt")[0]
        assert (went["master"], went["port"]) == ("127.0.0.1", run.events(0, "attempt")[0]["port"])
    assert went["port"] != run.gang["port"]


def test_hosts_wait_for_the_first_launcher_only_if_it_listens(cluster: Make) -> None:
    """Launchers of mpirun-per-host and deepspeed need nothing of each other. It would wait for 5 s."""
    slow = 'test "$DISTTUI_NODE" = 1 || sleep 600'
    run = cluster(SLEEP, [1, 1], launcher="mpirun-per-host", activate=slow).start()
    first, second = (run.wait_event(node, "launch")["t"] for node in (0, 1))
    run.stop(now=True)
    assert second - first < 4.5


def test_homes_shared_by_all_hosts(cluster: Make, tmp_path: Path) -> None:
    run = cluster("step(1)", [1, 1])
    run.run_dir = lambda node: tmp_path / "shared"  # type: ignore[method-assign]
    run.start()
    assert same(run)["state"] == "finished"


@pytest.mark.parametrize("stopper", [0, 1])
def test_stop_on_any_host_stops_all(cluster: Make, stopper: int) -> None:
    run = cluster(SLEEP, [1, 1]).start().wait_ranks()
    run.stop(stopper)
    assert same(run)["state"] == "stopped"
    wait_for(lambda: not run.living(), "the supervisors' end")
    asked = [json.loads(run.path(node, "stop").read_text())["t"] for node in (0, 1)]
    # A stop that waits for the grace (5 s) takes longer; tests/bench measures the figure itself.
    assert max(end["t"] for end in run.exits()) - min(asked) < 2.0


@pytest.mark.parametrize("stopper", [0, 1])
def test_stop_while_joining(cluster: Make, stopper: int) -> None:
    run = cluster(SLEEP, [1, 1, 1])
    run.start(0, 1)
    run.wait_event(0, "join", node=1)
    run.stop(stopper)
    for node in (0, 1):
        assert run.exit(node)["state"] == "stopped"
    assert run.living() == {}


def test_stop_of_a_host_that_has_not_joined_is_quick(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1], launch={"join_timeout": 300, "grace": 300})
    run.gang = {"port": ports.reserve((40000, 40100)).port, "addresses": ["127.0.0.1"]}
    run.start(1)
    run.stop(1)
    assert run.exit(1, 10)["state"] == "stopped"


def test_huge_error_messages_pass_the_wire(cluster: Make) -> None:
    run = cluster("if rank == 1: raise ValueError('\U0001f600' * 100000)\n" + SLEEP, [1, 1]).start()
    assert same(run)["cause"]["message"].startswith("\U0001f600" * 100)


def test_late_joiner_of_a_stopped_run_ends_itself(cluster: Make) -> None:
    job = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('armed', flush=True)\n" + SLEEP
    run = cluster(job, [1, 1, 1], launch={"join_timeout": 3})
    run.start(0, 1)
    run.wait_event(0, "join", node=1)
    run.stop(0)
    run.exit(0)
    run.start(2)
    end = run.exit(2)
    assert (end["state"], end["cause"]["kind"]) == ("failed", "join")


def test_missing_host_is_named(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1, 1], launch={"join_timeout": 6})
    run.start(0, 1)
    waiting = run.wait_event(0, "waiting")
    assert waiting["missing"] == [2]
    for node in (0, 1):
        end = run.exit(node)
        assert (end["state"], end["cause"]["kind"], end["cause"]["node"]) == ("failed", "join", 2)
        assert "host2 (node 2)" in end["cause"]["message"]


def test_follower_without_leader_ends_itself_and_says_why(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1], launch={"join_timeout": 2})
    run.gang = {"port": ports.reserve((40000, 40100)).port, "addresses": ["127.0.0.1"]}
    run.start(1)
    assert run.wait_event(1, "dial")["problem"] == "Connection refused"
    end = run.exit(1)
    assert (end["state"], end["cause"]["kind"]) == ("failed", "join")
    assert "Connection refused" in end["cause"]["message"]


def test_wrong_key_is_a_stranger(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1], launch={"join_timeout": 3})
    run.start(0)
    run.key = "00" * 32
    run.start(1)
    assert "not this run's leader" in run.wait_event(1, "dial")["problem"]
    assert run.exit(0)["cause"]["kind"] == "join"


def test_a_launcher_that_cannot_say_that_it_is_ready(cluster: Make) -> None:
    """Its disk may be full: the other hosts get the word all the same."""
    job = """
if rank == 1: open("met", "x").close()
while not os.path.exists("met"): time.sleep(0.02)
"""
    run = cluster(job, [1, 1], env={"STUB_UNREADY": "1"}).start()
    assert same(run)["state"] == "finished"


def test_one_rank_raises_all_hosts_end(cluster: Make) -> None:
    run = cluster("step(1)\nif rank == 2: raise ValueError('boom')\n" + SLEEP, [1, 2]).start()
    at = run.wait_event(1, "error")["t"]
    end = same(run)
    assert max(one["t"] for one in run.exits()) - at < 3.0, "nobody waits for the grace (5 s)"
    cause = end["cause"]
    assert (cause["node"], cause["rank"], cause["type"], cause["message"]) == (1, 2, "ValueError", "boom")
    assert run.living() == {}


def test_restart_of_the_whole_gang(cluster: Make) -> None:
    run = cluster(
        """
step(attempt)
if attempt == 1:
    time.sleep(0.5)
    if rank == 1: raise ValueError("once")
    time.sleep(600)
""",
        [1, 1],
        launch={"restarts": 1},
    ).start()
    end = same(run)
    assert (end["state"], end["attempt"]) == ("finished", 2)
    assert [e["attempt"] for e in run.events(1, "attempt")] == [1, 2]


@pytest.mark.parametrize(("moment", "attempt"), [("stopping", 1), ("launcher", 1), ("attempt", 2), ("rank", 2)])
def test_stop_during_the_switch_of_attempts(cluster: Make, moment: str, attempt: int) -> None:
    job = "step(attempt)\ntime.sleep(0.2)\nif rank == 1: raise ValueError('again')\n" + SLEEP
    run = cluster(job, [1, 1], launch={"restarts": 1000}).start()
    run.wait_event(0, moment, attempt=attempt)
    run.stop(attempt % 2)
    assert same(run)["state"] == "stopped"
    assert run.living() == {}


def test_follower_supervisor_killed(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1]).start().wait_ranks()
    os.kill(run.supervisor(1)["pid"], signal.SIGKILL)
    assert run.exit(1)["cause"]["kind"] == "supervisor lost"
    end = run.exit(0, 20)
    assert (end["state"], end["cause"]["kind"], end["cause"]["node"]) == ("failed", "host lost", 1)


def test_follower_and_warden_killed(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1]).start().wait_ranks()
    up = run.supervisor(1)
    os.kill(up["warden"]["pid"], signal.SIGKILL)
    os.kill(up["pid"], signal.SIGKILL)
    assert run.exit(0, 20)["cause"]["kind"] == "host lost"
    wait_for(lambda: not run.living(), "the kernel ends the ranks with their launcher")


def test_a_killed_launcher_of_a_follower_is_the_cause(cluster: Make) -> None:
    run = cluster("step(1)\ntime.sleep(600)\n", [1, 1]).start().wait_ranks()
    with run.path(1, "attempt-1/launcher.log").open("a") as log:
        log.write("UserWarning: Failed to initialize NumPy: No module named 'numpy'\n")
    os.kill(run.wait_event(1, "launch")["pid"], signal.SIGKILL)
    cause = same(run)["cause"]
    assert (cause["node"], cause["kind"], cause["code"]) == (1, "launch", -9)
    assert cause["message"] == "torchrun was ended by SIGKILL"


@pytest.mark.parametrize("node", [0, 1])
def test_a_run_folder_removed_on_one_host_ends_the_gang(cluster: Make, node: int) -> None:
    run = cluster("step(1)\ntime.sleep(600)\n", [1, 1]).start().wait_ranks()
    up = run.supervisor(node)
    shutil.rmtree(run.folder(node), ignore_errors=True)
    cause = run.exit(1 - node)["cause"]
    assert (cause["node"], cause["kind"]) == (node, "folder")
    assert cause["message"] == f"the run folder {run.folder(node)} was removed"
    wait_for(lambda: not (procs.alive(up) or procs.alive(up["warden"])), "the end of supervisor and warden")
    wait_for(lambda: not run.living(), "the end of all")


def test_leader_killed_ends_the_followers_quickly(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1]).start().wait_ranks()
    killed = time.time()
    os.kill(run.supervisor(0)["pid"], signal.SIGKILL)
    end = run.exit(1, 20)
    assert (end["state"], end["code"], end["cause"]["kind"]) == ("lost", 1, "host lost")
    assert end["t"] - killed < 4, "well before host_timeout (30 s)"
    assert run.exit(0)["cause"]["kind"] == "supervisor lost"
    assert run.living() == {}
