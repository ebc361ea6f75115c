"""How long it takes until a fault is noticed, acted on, or over."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import Cluster
from tests.cluster.typed import User
from tests.faults.kit import NASTY, Fault, wait_until

GRACE = 2.0
HEAD = """\
| what | seconds, median (range) | gate | runs |
|---|---|---|---|"""


@dataclass(frozen=True)
class Figure:
    """Seconds that something took, and what they must stay under."""

    name: str
    seconds: tuple[float, ...]
    gate: str

    def row(self) -> str:
        """Return one row of the table of which `HEAD` is the head."""
        low, high = min(self.seconds), max(self.seconds)
        median = statistics.median(self.seconds)
        return f"| {self.name} | {median:.2f} ({low:.2f} to {high:.2f}) | {self.gate} | {len(self.seconds)} |"


def measure(runs: int) -> Iterator[Figure]:
    """Take every figure in turn."""
    yield Figure("stop of a well-behaved gang, 4 hosts, until nothing is left", _each(runs, 4, _stopped), "1.5")
    yield Figure(
        f"stop of a nasty gang, 4 hosts, grace {GRACE:g} s", _each(runs, 4, _stopped, NASTY), f"{GRACE + 1.5:g}"
    )
    yield Figure("a host without power is shown as not seen", _each(runs, 2, _not_seen), "6")
    yield Figure("a dead supervisor is acted on by the others", _each(runs, 2, _acted_on), "2")
    yield Figure("a viewer shows new lines after a restored link (cut for 8 s)", _each(runs, 2, _reconnected), "3")
    recoveries = [_recovery() for _ in range(runs)]
    yield Figure("from the command to the first step, 2 hosts", tuple(fresh for fresh, _ in recoveries), "")
    ratio = statistics.median(again / fresh for fresh, again in recoveries)
    yield Figure(
        f"from a killed rank to the next first step ({ratio:.2f} × a fresh start)",
        tuple(again for _, again in recoveries),
        "1.3 ×",
    )


def _each(runs: int, hosts: int, take: Callable[[Fault], float], *text: str) -> tuple[float, ...]:
    taken = []
    for _ in range(runs):
        with _user(hosts) as me:
            taken.append(take(Fault.begin(me, *text, launch={"grace": GRACE})))
    return tuple(taken)


@contextmanager
def _user(hosts: int) -> Iterator[User]:
    with tempfile.TemporaryDirectory() as home, Cluster(hosts) as cluster:
        me = User(cluster, Path(home))
        try:
            yield me
        finally:
            me.close()


def _stopped(fault: Fault) -> float:
    """Ctrl-C in the viewer."""
    sent = fault.running.send(2)
    return fault.running.wait_gone() - sent


def _not_seen(fault: Fault) -> float:
    fault.hosts[1].power_off()
    off = time.time()
    fault.running.wait_for(lambda: "node2: unreachable since" in fault.running.stderr)
    return time.time() - off


def _acted_on(fault: Fault) -> float:
    fault.kill(1, "supervisor")
    killed = time.time()
    return float(fault.wait_event(0, "stopping")["t"]) - killed


def _reconnected(fault: Fault) -> float:
    here = fault.me.cluster.viewer_address
    fault.hosts[1].cut_viewer(here, True)
    time.sleep(8)
    fault.hosts[1].cut_viewer(here, False)
    restored = time.time()
    line = f"rank 1 of attempt 1 counts {fault.steps(1)}\n"
    fault.running.wait_for(lambda: line in fault.running.stdout)
    return time.time() - restored


def _recovery() -> tuple[float, float]:
    """Seconds of a fresh start and of a recovery, each to the first step of every rank."""
    with _user(2) as me:
        begun = time.time()
        fault = Fault.begin(me, launch={"grace": GRACE, "restarts": 1})
        fresh = _first_steps(fault, 1) - begun
        fault.kill(1, "rank")
        killed = time.time()
        return fresh, _first_steps(fault, 2) - killed


def _first_steps(fault: Fault, attempt: int) -> float:
    nodes = range(len(fault.hosts))
    wait_until(lambda: all(any(one["attempt"] == attempt for one in fault.events(node, "step")) for node in nodes))
    steps = [one["t"] for node in nodes for one in fault.events(node, "step") if one["attempt"] == attempt]
    return float(max(steps))
