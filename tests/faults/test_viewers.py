"""Viewers that die, leave, lose their link, sleep, or run out of disk: nothing of it concerns the run."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

import pytest

from disttui.runner.ids import short
from tests.cluster.typed import Viewer, elsewhere, wait_gone
from tests.command import ran
from tests.faults.kit import Fault, shown, wait_until
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.torch

Begin = Callable[..., Fault]


def test_killed_then_hung_up_then_cut_off(begin: Begin) -> None:
    """SIGKILL of the viewer; SIGHUP of the next; sshd restarted and all sessions dropped under a third."""
    fault = begin(2)
    me = fault.me
    fault.running.send(signal.SIGKILL)
    fault.running.process.wait()
    second = Viewer(me, fault.run)
    second.wait_line("rank 1 of attempt 1 counts")
    second.process.send_signal(signal.SIGHUP)
    assert second.end() == 0, second.said()
    assert "detached; the run continues" in second.said(), second.said()

    third = Viewer(me, fault.run)
    third.wait_line("counts")
    for host in fault.hosts:
        host.restart_sshd()
        host.drop_sessions()
    dropped = time.time()
    for node in range(2):
        count = fault.steps(node)
        wait_for(lambda: shown(third.said(), node) > count, "what it says next", 15)  # noqa: B023 (called here)
    print(f"all logs go on {time.time() - dropped:.2f} s after the sessions were dropped")
    fault.finish()
    assert third.end() == 0, third.said()
    wait_gone(me.cluster, 15)
    fault.exits("finished")
    fault.whole()
    assert f"✓ {short(fault.run)} finished" in third.said()


@pytest.mark.parametrize("hosts", [1, 2])
def test_viewer_killed_during_the_start(begin: Begin, hosts: int) -> None:
    """A run that was started goes on; one that not all hosts have heard of ends with that as its cause."""
    fault = begin(hosts, light=True, wait=False, launch={"join_timeout": 8})
    wait_until(lambda: any(fault.hosts[0].home.glob(".disttui/runs/*/0/spec.json")))
    fault.running.send(signal.SIGKILL)
    fault.running.process.wait()
    fault.finish()
    # A host that the start had not reached yet has no part of the run.
    parts = [part for host in fault.hosts for part in host.home.glob(".disttui/runs/*/[0-9]")]
    wait_until(lambda: all((part / "exit.json").exists() for part in parts), 60, fault.story)
    ends = [json.loads((part / "exit.json").read_text()) for part in parts]
    wait_gone(fault.me.cluster, 15)
    if hosts == 1 or ends[0]["state"] == "finished":  # of two hosts, both may have heard of the start by then
        assert [end["state"] for end in ends] == ["finished"] * hosts, ends
    else:
        assert [end["cause"]["kind"] for end in ends] == ["join"] * len(parts), fault.story()
        assert "not started there" in ends[0]["cause"]["message"], ends


def test_the_viewers_links_are_cut_silently(begin: Begin) -> None:
    """A link is given up after 7 s without a word, and made anew at once when that works again: after 30 s or 58 s."""
    fault = begin(3)
    here = fault.me.cluster.viewer_address
    cut = time.time()
    for host in fault.hosts[1:]:
        host.cut_viewer(here, True)
    fault.running.wait_for(lambda: all(f"node{n}: unreachable since" in fault.running.stderr for n in (2, 3)), 10)
    print(f"shown as not seen after {time.time() - cut:.2f} s")

    def reconnect(node: int, seconds: float) -> None:
        time.sleep(cut + seconds - time.time())
        assert f"rank {node} is done" not in fault.running.stdout
        fault.hosts[node].cut_viewer(here, False)
        restored = time.time()
        count = fault.steps(node)
        fault.running.wait_for(lambda: f"rank {node} of attempt 1 counts {count}\n" in fault.running.stdout, 6)
        print(
            f"after {seconds} s without a link all is shown {time.time() - restored:.2f} s after the link was restored"
        )

    reconnect(1, 30)
    reconnect(2, 58)
    fault.finish()
    assert fault.running.wait(60) == 0, fault.story()
    wait_gone(fault.me.cluster, 75)  # the node programs at the other end of the old links give up after 60 s
    fault.exits("finished")
    fault.whole(fetch=False)


def test_two_viewers_one_asleep(begin: Begin) -> None:
    """A viewer under SIGSTOP holds up neither the run nor the other viewer, and has everything once it wakes up."""
    fault = begin(2)
    you = elsewhere(fault.me)
    other = Viewer(you, fault.run, "--host", "node2", "--trust-hosts")
    other.wait_line("rank 0 of attempt 1 counts")
    fault.running.send(signal.SIGSTOP)
    count = fault.steps(0)
    wait_until(lambda: shown(other.said(), 0) > count + 150, 60, other.said)
    fault.finish()
    assert other.end() == 0, other.said()
    wait_until(lambda: all((fault.folder(node) / "exit.json").exists() for node in range(2)))
    fault.running.send(signal.SIGCONT)
    fault.end(0)
    fault.exits("finished")
    fault.whole(fetch=False)
    fault.whole(you)


def test_the_viewers_disk_is_full(begin: Begin) -> None:
    """A viewer that has no room says so and that the run goes on; it does, and is seen whole from elsewhere."""
    fault = begin(2, _TALKATIVE, light=True)
    me, small = fault.me, fault.me.home / "small"
    small.mkdir()
    words = me.command("attach", fault.run, "--host", "node1", "--trust-hosts")
    mount = f'mount -t tmpfs -o size=1m tmpfs {small} && exec "$@"'
    seen = ran(
        ["unshare", "-m", "sh", "-c", mount, "sh", *words], env=me.environment(XDG_DATA_HOME=str(small)), cwd=me.home
    )
    assert seen.returncode == 1, seen.stdout[-2000:] + seen.stderr
    assert "No space left on device" in seen.stderr and "Traceback" not in seen.stderr, seen.stderr
    assert "detached; the run continues" in seen.stderr, seen.stderr
    assert len(fault.hosts[0].processes()) > 3
    fault.finish()
    fault.end(0)
    fault.exits("finished")
    fault.whole(fetch=False)


_TALKATIVE = """
import os, pathlib, sys, time

enough = pathlib.Path(__file__).parent / sys.argv[1]
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    metrics.write('{"step": 1}\\n')
while not enough.exists():
    print("x" * 65536, flush=True)
    time.sleep(0.05)
"""
