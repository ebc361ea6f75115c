"""From the command to the first training step on every rank of 2 hosts."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from tests.bench.harness import Comparison, compare
from tests.bench.terminals import TRAIN, Way, disttui, hand
from tests.cluster import Cluster


def measure(runs: int, each: int) -> Comparison:
    """Seconds until all ranks have printed their first step, `each` on every host."""
    with Cluster(2) as cluster:
        script = cluster.shared / "train.py"
        script.write_text(TRAIN)
        ours, theirs = (partial(until_all, way, cluster, script, each) for way in (disttui, hand))
        return compare(f"first step, 2 × {each}", "s", ours, theirs, runs=runs)


def until_all(way: Way, cluster: Cluster, script: Path, each: int = 1) -> float:
    """Seconds until all ranks, `each` on both hosts, have printed their first step."""
    begun, took, seen = time.time(), 0.0, 0
    with way(cluster, script, [], [each, each]) as lines:
        for when, text in lines:
            seen += text.count("step 0")  # mpirun by hand may put two ranks' words into one line
            if seen >= 2 * each and not took:
                took = when - begun
    if not took:
        raise RuntimeError("a rank has printed no first step")
    return took
