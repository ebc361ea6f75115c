"""From the command to the first training step on every rank, 2 hosts × 1 process."""

from __future__ import annotations

import time

from tests.bench.harness import Comparison, compare
from tests.bench.terminals import TRAIN, Way, disttui, hand
from tests.cluster import Cluster


def measure(runs: int) -> Comparison:
    """Seconds until both ranks have printed their first step."""
    with Cluster(2) as cluster:
        script = cluster.shared / "train.py"
        script.write_text(TRAIN)

        def until_both(way: Way) -> float:
            begun, took = time.time(), 0.0
            seen = 0
            with way(cluster, script, [], [1, 1]) as lines:
                for when, text in lines:
                    seen += text == "step 0"
                    if seen == 2:
                        took = when - begun
                for _ in lines:
                    pass
            return took

        return compare("first step", "s", lambda: until_both(disttui), lambda: until_both(hand), runs=runs)
