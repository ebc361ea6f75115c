"""Cables: hosts that lose each other for a while and for good, hosts without power, hosts that come back."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from disttui.runner.ids import short
from tests.cluster.hub import ip
from tests.cluster.typed import User, typed, wait_gone
from tests.faults.kit import COUNT, LATE, Fault, wait_until

pytestmark = pytest.mark.torch

Begin = Callable[..., Fault]
SOON: dict[str, Any] = {"host_timeout": 8, "grace": 2}

_REDUCE = """
import json, os, pathlib, sys, time
import torch, torch.distributed as dist

enough = pathlib.Path(__file__).parent / sys.argv[1]
dist.init_process_group("gloo")
total = torch.zeros(1)
step = 0
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    while True:
        step += 1
        part = torch.tensor([float(step), float(enough.exists())])
        dist.all_reduce(part)
        assert part[0] == 2 * step
        print("sum", step, flush=True)
        metrics.write(json.dumps({"t": time.time(), "step": step, "loss": 1 / step}) + "\\n")
        metrics.flush()
        if part[1]:
            break
        time.sleep(0.02)
# Left to the interpreter's end, gloo's threads abort now and then.
dist.destroy_process_group()
"""


def test_two_hosts_lose_each_other_for_20_s(begin: Begin) -> None:
    """A training in the middle of its collectives stands still and goes on: no step is lost, nothing starts anew."""
    fault = begin(2, _REDUCE)
    first, second = fault.hosts
    first.cut_from(second)
    cut = time.time()
    seen = fault.wait_event(0, "host", 18, node=1, state="not seen")
    print(f"the leader misses node2 {seen['t'] - cut:.2f} s after the cut")
    assert seen["t"] - cut < 6 + LATE
    fault.running.wait_for(lambda: "node2" in fault.running.stderr and "not seen" in fault.running.stderr, 15)
    time.sleep(max(0.0, cut + 20 - time.time()))
    steps = fault.steps(0)
    first.mend_to(second)
    restored = time.time()
    fault.wait_event(0, "host", 15, node=1, state="seen")
    # The kernel repeats what was lost ever more slowly: up to as long again as the cut was, as by hand.
    fault.wait_steps(steps + 2, timeout=40)
    print(f"the next step {time.time() - restored:.2f} s after the link was restored")
    fault.finish()
    fault.end(0)
    fault.exits("finished")
    fault.whole(fetch=False)
    for node in range(2):
        text = (fault.folder(node) / f"attempt-1/rank-{node}.log").read_text()
        lines = [line for line in text.splitlines() if line.startswith("sum ")]
        assert lines == [f"sum {step}" for step in range(1, len(lines) + 1)]


@pytest.mark.parametrize("more", [{}, {"restarts": 2}, {"restarts": 2, "rejoin_timeout": 3}], ids=str)
def test_two_hosts_lose_each_other_for_good(begin: Begin, more: dict[str, Any]) -> None:
    """Both ends stop by themselves after host_timeout, and the story says who was lost and when it last lived."""
    fault = begin(2, launch={**SOON, **more})
    fault.hosts[0].cut_from(fault.hosts[1])
    cut = time.time()
    fault.end(1)
    print(f"nothing is left {fault.ended_at() - cut:.2f} s after the cut")
    # With a limit for coming back: the time of the fence before it, grace and 6 s.
    waited = 2 + 6 + 3 if "rejoin_timeout" in more else 0
    assert fault.ended_at() - cut < 8 + 2 + 1 + waited + LATE
    fault.exits("failed", (0,))
    fault.exits("lost", (1,))
    why = "not back within 3 s (launch.rejoin_timeout)" if waited else "no heartbeat for 8 s"
    assert why in lost(fault, "node2", cut), fault.story()
    assert not fault.events(0, "attempt")[1:]
    fault.whole(fetch=False)


def test_two_hosts_find_each_other_again_within_the_limit(begin: Begin) -> None:
    """Both have ended their ranks by then; the next attempt begins at once and comes to its end."""
    fault = begin(2, _REDUCE, launch={**SOON, "restarts": 1, "rejoin_timeout": 60})
    first, second = fault.hosts
    first.cut_from(second)
    for host in (0, 1):
        fault.wait_event(host, "host", 30, node=1 - host, state="lost")
    fault.wait_event(0, "failed", 30)
    first.mend_to(second)
    restored = time.time()
    fault.wait_steps(5, attempt=2)
    print(f"all train again {time.time() - restored:.2f} s after the link was restored")
    fault.finish()
    fault.end(0)
    fault.exits("finished")
    assert "attempt 1 failed: host lost: node2, last heartbeat" in fault.running.stderr, fault.story()
    ended, begun = fault.events(1, "launcher")[0]["t"], fault.events(0, "attempt")[1]["t"]
    assert ended < begun, "the host that was away had ended its ranks before"
    fault.whole(fetch=False)


@pytest.mark.parametrize(("kind", "attempt"), [("stopping", 1), ("attempt", 2)], ids=["failure", "next attempt"])
def test_host_lost_between_two_attempts_is_awaited(begin: Begin, kind: str, attempt: int) -> None:
    """A cut while attempt 1 ends, or before a rank of attempt 2 has shown that it trains."""
    once = '        if (rank, attempt) == ("1", "1") and step > 9:\n            raise ValueError("once")\n'
    text = COUNT.replace("step += 1\n", "step += 1\n" + once)
    fault = begin(2, text, launch={**SOON, "restarts": 3, "rejoin_timeout": 60})
    first, second = fault.hosts
    fault.wait_event(0, kind, attempt=attempt)
    first.cut_from(second)
    for node in (0, 1):
        fault.wait_event(node, "host", 30, node=1 - node, state="lost")
    fault.wait_event(0, "waiting", 30)
    first.mend_to(second)
    fault.finish()
    fault.end(0, timeout=90)
    fault.exits("finished")


def test_a_host_without_power(begin: Begin) -> None:
    """The others stop; the host comes back days later with a stale run folder, which is settled, read and removed."""
    fault = begin(3, light=True, launch=SOON)
    me, run = fault.me, fault.run
    off = time.time()
    fault.hosts[2].power_off()
    seen = fault.wait_event(0, "host", 18, node=2, state="not seen")
    assert seen["t"] - off < 6 + LATE
    told_lost = fault.wait_event(0, "host", 18, node=2, state="lost")
    print(f"not seen after {seen['t'] - off:.2f} s, lost after {told_lost['t'] - off:.2f} s")
    fault.end(1)
    print(f"nothing is left {fault.ended_at(0, 1) - off:.2f} s after the power went")
    fault.exits("failed", (0, 1))
    assert "no heartbeat for 8 s" in lost(fault, "node3", off), fault.story()
    assert not (fault.folder(2) / "exit.json").exists()

    fault.hosts[2].boot()
    assert short(run) in typed(me, "ps")
    assert "already" in typed(me, "stop", run)
    fault.exits("failed")
    fault.whole()
    assert "rebooted" in (fault.folder(2) / "exit.json").read_text()
    assert "removed on node1, node2, node3 and here" in typed(me, "runs forget", run)
    assert not any((host.home / ".disttui/runs" / run).exists() for host in me.cluster.hosts)


def test_a_stop_while_the_leader_is_cut_off(begin: Begin) -> None:
    """Nobody says "stopped" while its ranks go on; `ps` names the host, and what comes back is stopped by the user."""
    fault = begin(3, launch={"host_timeout": 300})
    me = fault.me
    fault.hosts[0].cut()
    command = me.command("stop", fault.run)
    with subprocess.Popen(
        command, cwd=me.home, env=me.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as stop:  # fmt: skip
        seen = fault.wait_event(1, "note", 100, stop=True)
        assert seen["text"].startswith("waiting for node1 to stop (no heartbeat)")
        said = typed(me, "ps")
        assert "stopping" in said and "no answer from node1" in said, said
        assert not (fault.folder(1) / "exit.json").exists()
        assert stop.poll() is None
        # The stop is on its way before the last host is connected to, and says later what it waits for.
        assert stop.stdout is not None
        words = ""
        while "node2: waiting for node1 to stop" not in words:
            words += (line := stop.stdout.readline())
            assert line, words
        fault.hosts[0].restore()
        words += stop.communicate(timeout=100)[0]
    assert stop.returncode == 0, words
    assert "stopped on node1, node2, node3" in words
    fault.end(130)
    fault.exits("stopped")
    assert fault.wait_event(0, "stopping")["reason"] == "user"
    assert "host lost" not in fault.story()
    tell_the_same(me, fault.run, "stopped")
    fault.whole()


def tell_the_same(me: User, run: str, state: str) -> None:
    """Every command says that a run has ended in this state, and that nothing is open."""
    for words in (["ps", "--local"], ["ps"]):
        [row] = [row for row in json.loads(typed(me, words[0], *words[1:], "--json")) if row["run"] == run]
        assert (row["state"], row["note"]) == (state, "")
    for words in (["--local"], []):
        assert json.loads(typed(me, "runs show", *words, "--json", run))["state"] == state
    assert f"has already {state}" in typed(me, "stop", run)


def test_a_stop_names_a_host_that_has_not_confirmed(begin: Begin) -> None:
    """The exit code says it as well; once the host is back, a second stop finds nothing open."""
    fault = begin(3, launch={"host_timeout": 5, "grace": 1})
    me, run = fault.me, fault.run
    fault.hosts[2].cut()
    said = typed(me, "stop", run, code=3)
    assert "stopped on node1, node2" in said and "not confirmed by node3" in said, said
    [row] = json.loads(typed(me, "ps", "--local", "--json"))
    assert (row["state"], row["note"]) == ("stopped", "node3 has not confirmed the stop")
    assert json.loads(typed(me, "runs show", "--local", "--json", run))["state"] == "stopped"
    assert "not confirmed by node3" in typed(me, "stop", run, code=3)
    fault.hosts[2].restore()
    assert "already stopped" in typed(me, "stop", run)
    tell_the_same(me, run, "stopped")


@pytest.mark.parametrize("more", [{}, {"restarts": 2, "rejoin_timeout": 300}], ids=str)
def test_a_host_is_rebooted_during_the_run(begin: Begin, more: dict[str, Any]) -> None:
    """It is back before it would be lost, without its processes: that is noticed, and the run ends at once.

    Nobody starts its supervisor again, so that it is not waited for.
    """
    fault = begin(2, launch={**SOON, **more})
    off = time.time()
    fault.hosts[1].reboot()
    up = time.time()
    fault.end(1)
    print(f"nothing is left {fault.ended_at(0) - up:.2f} s after the host was up again")
    assert "the host was rebooted" in lost(fault, "node2", off), fault.story()
    fault.exits("failed", (0,))
    typed(fault.me, "stop", fault.run)
    fault.exits("failed")
    fault.whole()
    wait_gone(fault.me.cluster, 10)


def test_the_leaders_host_is_rebooted(begin: Begin) -> None:
    """There is no election: the others end."""
    fault = begin(3, launch=SOON)
    fault.hosts[0].reboot()
    up = time.time()
    wait_until(lambda: all((fault.folder(node) / "exit.json").exists() for node in (1, 2)), 30, fault.story)
    fault.exits("lost", (1, 2))
    assert fault.ended_at(1, 2) - up < 8 + 2 + LATE
    fault.end(1)
    # Its own folder says so where the viewer finds it again in time.
    assert re.search("(host|supervisor) lost: node1, last heartbeat", fault.verdict()), fault.story()
    fault.whole()


def test_the_leaders_host_is_lost_with_attempts_left(begin: Begin) -> None:
    """The others wait for nobody: their ranks, though deaf to TERM, and supervisors end by host_timeout and grace."""
    deaf = COUNT + "time.sleep(900)\n"
    deaf = deaf.replace("step = 0\n", "step = 0\nimport signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n")
    fault = begin(3, deaf, launch={**SOON, "restarts": 3})
    off = time.time()
    fault.hosts[0].power_off()
    wait_until(lambda: all((fault.folder(node) / "exit.json").exists() for node in (1, 2)), 60, fault.story)
    fault.exits("lost", (1, 2))
    for node in (1, 2):
        end = json.loads((fault.folder(node) / "exit.json").read_text())
        print(f"node {node + 1} has ended {end['t'] - end['cause']['last']:.2f} s after the last sign of life")
        assert 8 + 2 - 1 < end["t"] - end["cause"]["last"] < 8 + 2 + 1 + LATE
    # The viewer hopes for a minute that the host comes back with its files.
    fault.end(1, 150)
    assert "no heartbeat from the leader for 8 s" in lost(fault, "node1", off), fault.story()
    fault.hosts[0].boot()
    typed(fault.me, "stop", fault.run)
    fault.exits("failed", (0,))
    fault.whole()


def lost(fault: Fault, name: str, when: float) -> str:
    """Check that a host is said to be lost, with a last sign of life shortly before a time; returns the reason."""
    found = re.search(rf"host lost: {name}, last heartbeat (\d\d:\d\d:\d\d) \((.*)\)", fault.verdict())
    assert found, fault.story()
    around = [time.strftime("%H:%M:%S", time.localtime(when + seconds)) for seconds in range(-4, 4)]
    assert found[1] in around, (found[1], around)
    return found[2]


@pytest.mark.parametrize("moment", ["before it connects", "while it starts"])
def test_a_cut_of_8_s_in_the_first_second_of_run(user: Callable[..., User], moment: str) -> None:
    """One more try is made: the run starts, once, and comes to its end."""
    me = user(2, light=True)
    host = me.cluster[1]
    # Else the kernel still knows it, and waits in silence instead of saying that there is no way.
    ip(f"neigh flush to {host.address}")
    profile = me.profile({"command": ["true"]})
    if moment == "before it connects":
        host.cut()
    running = me.start(profile)
    if moment == "while it starts":
        begun = me.home / ".local/share/disttui/runs"
        running.wait_for(lambda: begun.is_dir() and any(begun.iterdir()))
        host.cut()
    cut = time.monotonic()
    time.sleep(8)
    host.restore()
    code = running.wait()
    print(f"{moment}: ended {time.monotonic() - cut - 8:.1f} s after the mending\n{running.stdout}{running.stderr}")
    assert code == 0
    assert "the clock of" not in running.stderr, "hosts are not probed at the same moment"
    assert len(list((host.home / ".disttui/runs").iterdir())) == 1
