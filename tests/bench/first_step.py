"""From the command to the first training step on every rank, 2 hosts × 1 process."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from tests.bench.harness import Comparison, compare
from tests.bench.terminals import TRAIN, Way, disttui, hand
from tests.cluster import Cluster


def measure(runs: int) -> Comparison:
    """Seconds until both ranks have printed their first step."""
    with Cluster(2) as cluster:
        script = cluster.shared / "train.py"
        script.write_text(TRAIN)
        ours, theirs = partial(until_both, disttui, cluster, script), partial(until_both, hand, cluster, script)
        return compare("first step", "s", ours, theirs, runs=runs)


def until_both(way: Way, cluster: Cluster, script: Path) -> float:
    """Seconds until both ranks, one on each host, have printed their first step."""
    begun, took, seen = time.time(), 0.0, 0
    with way(cluster, script, [], [1, 1]) as lines:
        for when, text in lines:
            seen += text.count("step 0")  # mpirun by hand may put two ranks' words into one line
            if seen >= 2 and not took:
                took = when - begun
    if not took:
        raise RuntimeError("a rank has printed no first step")
    return took
