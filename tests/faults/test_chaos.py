"""Random faults on 4 hosts: whatever comes together, the run ends, says why, keeps every byte and leaves nothing.

All the while another user on every host takes names and ports at random, and a fifth host, which is no member, replays
to the gang what it has overheard, with other bytes between (tests/neighbour.py, tests/stranger.py).

DISTTUI_CHAOS_SECONDS says for how long (300 s unless it does), DISTTUI_CHAOS_SEED what happens when; the seed is
printed, and the same seed does the same things in the same order.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable

import pytest

from tests.cluster.host import ClusterHost
from tests.cluster.typed import User, Viewer, elsewhere, typed, wait_gone
from tests.faults.kit import Fault, wait_until
from tests.faults.outsiders import Outsiders

_SECONDS = float(os.environ.get("DISTTUI_CHAOS_SECONDS", "300"))
pytestmark = [pytest.mark.torch, pytest.mark.timeout(_SECONDS + 300)]

_HEARD = 3.0
"""Seconds until the hosts have heard of each other after a cut: what is cut again before has been away all the time."""
_ENDS = {0: "finished", 1: "failed", 130: "stopped"}


class _Round:
    """One run, some faults that it must survive or that end it, and its end."""

    def __init__(self, me: User, dice: random.Random, outside: ClusterHost) -> None:
        self.dice = dice
        self.outsiders = Outsiders(me.cluster.hosts, outside, random.Random(dice.random()))
        self.fault = Fault.begin(me, launch={"host_timeout": 8, "grace": 2, "restarts": 3, "join_timeout": 20})
        self.hosts = self.fault.hosts
        self.attempt = 1
        self.died_at = 0
        self.off: set[int] = set()
        self.point()

    def point(self) -> None:
        """Show the stranger where to aim."""
        ports = [self.fault.events(0, kind)[-1]["port"] for kind in ("listen", "attempt")]
        self.outsiders.point(*ports)

    def harmless(self) -> None:
        """Something that the run must not notice."""
        node = self.dice.randrange(len(self.hosts))
        host = self.hosts[node]
        kind = self.dice.choice(["viewer", "sshd", "cut", "cut off", "asleep"])
        print(f"    {kind} {host.name}", flush=True)
        if kind == "viewer":
            viewer = Viewer(self.fault.me, self.fault.run)
            viewer.wait_line("counts")
            viewer.process.send_signal(self.dice.choice([signal.SIGKILL, signal.SIGHUP, signal.SIGINT]))
            viewer.end()
        elif kind == "sshd":
            host.restart_sshd()
            host.drop_sessions()
        elif kind == "cut":
            other = self.hosts[(node + 1) % len(self.hosts)]
            host.cut_from(other)
            time.sleep(self.dice.uniform(1, 5))
            host.mend_to(other)
            time.sleep(_HEARD)
        elif kind == "cut off":
            host.cut()
            time.sleep(self.dice.uniform(1, 5))
            host.restore()
            time.sleep(_HEARD)
        else:
            self.fault.running.send(signal.SIGSTOP)
            time.sleep(self.dice.uniform(1, 4))
            self.fault.running.send(signal.SIGCONT)
        nodes = range(len(self.hosts))
        assert not [seen for node in nodes for seen in self.fault.events(node, "host") if seen["state"] == "lost"], (
            self.fault.story()
        )
        assert max(seen["attempt"] for seen in self.fault.events(0, "attempt")) == self.attempt, self.fault.story()

    def restarted(self) -> None:
        """Something that costs the run an attempt."""
        node, who = self.dice.randrange(len(self.hosts)), self.dice.choice(["rank", "launcher"])
        print(f"    SIGKILL of the {who} on {self.hosts[node].name}", flush=True)
        # Two attempts in a row that die at the same step would end the run, as they should.
        self.fault.wait_steps(self.died_at + 5, self.attempt)
        self.fault.kill(node, who)
        self.attempt += 1
        self.fault.wait_steps(5, self.attempt)
        self.point()
        self.died_at = max(self.fault.steps(node, self.attempt - 1) for node in range(len(self.hosts)))

    def end(self) -> None:
        """Let it finish, or do something that ends it; check what must be true in any case."""
        node = self.dice.randrange(len(self.hosts))
        kind = self.dice.choice(["finish", "stop", "supervisor", "warden", "power", "reboot", "apart"])
        print(f"    end: {kind} {self.hosts[node].name}", flush=True)
        code = 1
        if kind == "finish":
            self.fault.finish()
            code = 0
        elif kind == "stop":
            typed(self.fault.me, "stop", self.fault.run)
            code = 130
        elif kind == "supervisor":
            self.fault.kill(node, "supervisor")
        elif kind == "warden":
            self.fault.kill(node, "warden", "supervisor")
        elif kind == "power":
            self.outsiders.leave(node)
            self.hosts[node].power_off()
            self.off.add(node)
        elif kind == "reboot":
            self.outsiders.leave(node)
            self.hosts[node].reboot()
        else:
            for other in self.hosts:
                if other is not self.hosts[node]:
                    self.hosts[node].cut_from(other)
        self.check(code)
        self.outsiders.close()
        if kind == "apart":
            for other in self.hosts:
                if other is not self.hosts[node]:
                    self.hosts[node].mend_to(other)

    def check(self, code: int) -> None:
        fault = self.fault
        # The viewer waits for a lost host for a minute.
        assert fault.running.wait(180) == code, fault.story()
        for node in self.off:
            self.hosts[node].boot()
        typed(fault.me, "stop", fault.run)
        wait_gone(fault.me.cluster, 30)
        for node in range(len(self.hosts)):
            end = json.loads((fault.folder(node) / "exit.json").read_text())
            assert end["left"] == [], fault.story()
            assert end["state"] == _ENDS[code] or (code == 1 and end["state"] == "lost"), fault.story()
        assert "Traceback" not in fault.running.stderr, fault.story()
        if code == 1:
            assert re.search(r"(host|supervisor) lost: node\d, last heartbeat \d\d:", fault.verdict()), fault.story()
        fault.whole()


def test_chaos(user: Callable[..., User]) -> None:
    seed = int(os.environ.get("DISTTUI_CHAOS_SEED", random.SystemRandom().randrange(10**9)))
    print(f"\nDISTTUI_CHAOS_SEED={seed} DISTTUI_CHAOS_SECONDS={_SECONDS:g}")
    dice = random.Random(seed)
    me = user(5)
    outside = me.cluster.hosts.pop()
    until = time.monotonic() + _SECONDS
    rounds = 0
    while time.monotonic() < until:
        # Each round has dice of its own, so that a slower machine plays the same rounds.
        one = _Round(me, random.Random(dice.random()), outside)
        print(f"  round {rounds}: {one.fault.run}", flush=True)
        for _ in range(one.dice.randint(1, 4)):
            if one.dice.random() < 0.3 and one.attempt < 3:
                one.restarted()
            else:
                one.harmless()
        one.end()
        rounds += 1
    print(f"  {rounds} rounds")
    wait_until(lambda: not any(host.processes() for host in me.cluster.hosts))
    assert "Traceback" not in typed(elsewhere(me), "ps", "--host", "node1")
