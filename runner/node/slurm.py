"""Slurm's commands."""

from __future__ import annotations

import functools
import os
import subprocess
from typing import List, Tuple

from .problem import Problem

_ANSWER = 30.0
"""Seconds that a command may take: a controller that is busy answers late."""
_DROPPED = ("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_JOB_NAME", "SBATCH_OUTPUT", "SBATCH_CLUSTERS")
"""Variables by which sbatch would submit something else than one job of our name."""


def run(*words: str) -> str:
    """Run a command of Slurm; returns its output. Raises Problem."""
    # A login that is itself inside a job must not pass that job's variables on.
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and (not name.startswith("SLURM_") or name == "SLURM_CONF")
    }
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER, env=env, check=False
        )
    except FileNotFoundError:
        raise Problem(f"there is no {words[0]} here", "name a login node of Slurm as the host") from None
    except subprocess.TimeoutExpired:
        raise Problem(f"{words[0]} did not answer in {_ANSWER:.0f} s", "see whether slurmctld runs") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        what = "\n".join(line.replace(f"{words[0]}: error: ", "", 1) for line in said.splitlines())
        raise Problem(f"{words[0]}: {what or 'exit code %d' % done.returncode}")
    return done.stdout.decode("utf-8", "replace")


def hostnames(nodes: str) -> List[str]:
    """The names in Slurm's list of nodes, `n[1-3,7]`; empty where Slurm does not expand it."""
    try:
        return list(_expanded(nodes)) if nodes else []
    except Problem:
        return []


@functools.lru_cache(maxsize=64)
def _expanded(nodes: str) -> Tuple[str, ...]:
    return tuple(run("scontrol", "show", "hostnames", nodes).split())
