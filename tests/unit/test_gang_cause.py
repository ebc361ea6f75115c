"""Two hosts: which of the ranks that end is reported as the cause, independent of the host that saw it end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from disttui.runner.node import procs
from tests.unit.runs_kit import SLEEP, Cluster, Make, same
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


ECHO = """
def wait(name):
    while not os.path.exists(name): time.sleep(0.02)
if rank == 0:
    wait("echo")
    raise RuntimeError("pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer")
"""


@contextmanager
def asleep(run: Cluster, node: int) -> Iterator[None]:
    """Stop a supervisor: it will learn late what happens meanwhile."""
    pid = run.supervisor(node)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_an_echo_that_is_reported_first_is_not_the_cause(cluster: Make) -> None:
    run = cluster(ECHO + "wait('raise')\nraise KeyError('the real one')\n", [1, 1]).start().wait_ranks()
    with asleep(run, 1):
        (run.base / "raise").touch()
        wait_for(lambda: "KeyError" in run.path(1, "attempt-1/ranks.jsonl").read_text(), "the rank's own word")
        (run.base / "echo").touch()
        run.wait_event(0, "stopping")
    cause = same(run)["cause"]
    assert (cause["rank"], cause["type"]) == (1, "KeyError")
    assert run.events(0, "error")


def test_a_killed_rank_that_only_torchrun_saw_die(cluster: Make) -> None:
    """Its host is asked to end because of the echo before its launcher has ended, whose word still counts."""
    run = cluster(ECHO + "wait('kill')\nos.kill(os.getpid(), 9)\n", [1, 1], env={"STUB_LINGER": "1"}).start()
    run.wait_ranks()
    rank = run.wait_event(1, "rank")["pid"]
    with asleep(run, 1):
        (run.base / "kill").touch()
        wait_for(lambda: procs.read(rank) is None, "the launcher takes note of its rank's end")
        (run.base / "echo").touch()
        run.wait_event(0, "stopping")
    cause = same(run)["cause"]
    assert (cause["node"], cause["rank"], cause["kind"], cause["code"]) == (1, 1, "signal", -9)
    [death], [stopping] = run.events(1, "death"), run.events(1, "stopping")
    assert (death["code"], death["at"] < stopping["t"]) == (-9, True)


def test_rank_still_dying_when_its_host_stops_is_the_cause(cluster: Make) -> None:
    """As where a GPU's driver takes its time with what a killed rank held: its peers have noticed long before."""
    job = """
import ctypes, signal, threading
def die():
    wait("die")
    os.kill(os.getpid(), 9)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=die).start()
wait("kill")
exit_this_thread = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
ctypes.CDLL(None).syscall(exit_this_thread, 0)
"""
    run = cluster(ECHO + job, [1, 1], launch={"grace": 30}).start().wait_ranks()
    rank = run.wait_event(1, "rank")["pid"]
    (run.base / "kill").touch()
    wait_for(lambda: (known := procs.read(rank)) and known.dying, "its main thread's end")
    (run.base / "echo").touch()
    run.wait_event(1, "stopping")
    (run.base / "die").touch()
    cause = same(run)["cause"]
    assert (cause["rank"], cause["kind"], cause["code"]) == (1, "signal", -9)
    [death], [stopping] = run.events(1, "death"), run.events(1, "stopping")
    assert death["at"] < stopping["t"]


def test_externally_terminated_rank_is_the_cause(cluster: Make, tmp_path: Path) -> None:
    """Nothing tells it from one that its launcher ends; it was the first all the same."""
    run = cluster(ECHO + SLEEP, [1, 1], env={"STUB_LINGER": "1", "STUB_BLIND_UNTIL": str(tmp_path / "echo")}).start()
    run.wait_ranks()
    os.kill(run.wait_event(1, "rank")["pid"], signal.SIGTERM)
    run.wait_event(1, "death")
    (run.base / "echo").touch()
    cause = same(run)["cause"]
    assert (cause["rank"], cause["kind"], cause["code"]) == (1, "signal", -15)
