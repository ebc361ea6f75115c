"""Tokens per second of bytegpt beside the same model under other people's frameworks: two processes on this machine."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.bench.harness import Comparison
from tests.frameworks import PYTHON

STEPS = 120
_ROOT = Path(__file__).parents[2]
_LOOPS = Path(__file__).with_name("framework_loops.py")
PAIRS = (("ddp", "trainer"), ("ddp", "accelerate"), ("ddp", "lightning"), ("fsdp", "fully_shard"))
"""bytegpt's strategy, and what it is measured beside."""


def measure(runs: int) -> list[Comparison]:
    """Each framework beside bytegpt; in every round all of them take their turn."""
    ways = tuple(dict.fromkeys(way for pair in PAIRS for way in pair))
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(runs):
        for way in ways if turn % 2 == 0 else ways[::-1]:
            taken[way].append(_rate(way))
    return [
        Comparison(f"bytegpt {ours}, {theirs}", "tok/s", tuple(taken[ours]), tuple(taken[theirs]))
        for ours, theirs in PAIRS
    ]


def _rate(way: str) -> float:
    """Tokens per second of one run."""
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(_LOOPS), way, str(STEPS))
    env = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([str(PYTHON), *words], capture_output=True, text=True, env=env, check=False)
    found = re.search(r"^rate ([\d.]+)$", done.stdout, re.MULTILINE)
    assert found, f"{way} has not trained:\n{done.stdout}\n{done.stderr}"
    return float(found.group(1))
