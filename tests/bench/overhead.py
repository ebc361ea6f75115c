"""What the supervision costs: CPU time and memory on a host, and steps per second against bare torchrun."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.harness import Comparison, compare
from tests.bench.terminals import TRAIN, Way, disttui, hand
from tests.cluster import Cluster

STEPS = 1500
LONG = 6000
"""Steps of the run whose parts are compared: starting up, which is paid once, is not what supervision costs."""


@dataclass
class Cost:
    """CPU seconds and peak resident bytes of the parts of a run on all hosts."""

    supervision: float = 0.0
    serve: float = 0.0
    ranks: float = 0.0
    memory: float = 0.0
    """Proportional set size of warden and supervisor of one host, bytes."""


def rate(runs: int) -> Comparison:
    """Steps per second of rank 0."""
    with Cluster(2) as cluster:
        script = _script(cluster)

        def steps(way: Way) -> float:
            with way(cluster, script, _ARGS, [1, 1]) as lines:
                return max(float(text.split()[1]) for _, text in lines if text.startswith("rate "))

        return compare("steps/s", "1/s", lambda: steps(disttui), lambda: steps(hand), runs=runs)


def cost() -> Cost:
    """Run a job and read what its parts have used just before it ends."""
    with Cluster(2) as cluster:
        script = _script(cluster)
        latest: dict[int, tuple[str, float, float]] = {}
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.2):
                for host in cluster.hosts:
                    for pid, command in host.processes():
                        try:
                            latest[pid] = (command, _cpu(pid), _memory(pid))
                        except (OSError, ValueError):
                            continue

        watcher = threading.Thread(target=watch)
        watcher.start()
        with disttui(cluster, script, ["--steps", str(LONG), *_ARGS[2:]], [1, 1]) as lines:
            for _ in lines:
                pass
        done.set()
        watcher.join()
    total = Cost()
    for command, cpu, memory in latest.values():
        if " warden " in command:
            total.supervision += cpu
            total.memory += memory / len(cluster.hosts)
        elif " shim " in command and "torchrun" not in command:
            total.ranks += cpu
        elif "sys.stdin.buffer" in command:
            total.serve += cpu
    return total


def talkative() -> float:
    """The share of a core that warden and supervisor take on a host whose 8 ranks print ten steps a second each."""
    read: dict[str, tuple[float, float]] = {}
    with Cluster(1) as cluster:
        script = cluster.shared / "talk.py"
        script.write_text(_TALK)
        with disttui(cluster, script, [], [8]) as lines:
            for _, text in lines:
                step = text.partition(" |")[0]
                if step in ("Step 150", "Step 350") and step not in read:
                    pids = [pid for pid, command in cluster[0].processes() if " warden " in command]
                    read[step] = (time.monotonic(), sum(map(_cpu, pids)))
    (begun, before), (ended, after) = read["Step 150"], read["Step 350"]
    return (after - before) / (ended - begun)


_TALK = """import time
for step in range(400):
    print(f"Step {step} | Loss: {4 - step / 200:.4f}", flush=True)
    time.sleep(0.1)
"""
_ARGS = ["--steps", str(STEPS), "--width", "2048", "--quiet"]


def _script(cluster: Cluster) -> Path:
    script = cluster.shared / "train.py"
    script.write_text(TRAIN)
    return script


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    return float(next(_rollup(pid))) * 1024


def _rollup(pid: int) -> Iterator[str]:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            yield line.split()[1]


if __name__ == "__main__":
    begun = time.time()
    print(cost(), time.time() - begun)
