"""Slurm's commands."""

from __future__ import annotations

import functools
import os
from typing import List, Tuple

from .child import ask
from .problem import Problem

_ANSWER = 30.0
"""Seconds that a command may take: a controller that is busy answers late."""
_DROPPED = ("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_JOB_NAME", "SBATCH_OUTPUT", "SBATCH_CLUSTERS")
"""Variables by which sbatch would submit something else than one job of our name."""
_PREFIXES = ("SLURM_", "SRUN_", "SQUEUE_", "SCANCEL_")
"""Of variables of a job that the login is inside of, and of the user's defaults for other commands than sbatch: by
SQUEUE_STATES a job would not be listed, by SCANCEL_STATE it would not be cancelled."""


def run(*words: str) -> str:
    """Run a command of Slurm; returns its output. Raises Problem."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and (not name.startswith(_PREFIXES) or name == "SLURM_CONF")
    }
    try:
        done = ask(words, _ANSWER, ".", env)  # sbatch has the job begin in our folder
    except FileNotFoundError:
        raise Problem(f"there is no {words[0]} here", "use a login node of Slurm as the host") from None
    if done.code is None:
        raise Problem(
            f"{words[0]} did not end within {_ANSWER:.0f} s and 4 MiB of output", "check that slurmctld is running"
        )
    if done.code:
        what = "\n".join(line.replace(f"{words[0]}: error: ", "", 1) for line in done.err.strip().splitlines())
        raise Problem(f"{words[0]}: {what or 'exit code %d' % done.code}")
    return done.out


def hostnames(nodes: str) -> List[str]:
    """The names in Slurm's list of nodes, `n[1-3,7]`; empty where Slurm does not expand it."""
    try:
        return list(_expanded(nodes)) if nodes else []
    except Problem:
        return []


@functools.lru_cache(maxsize=64)
def _expanded(nodes: str) -> Tuple[str, ...]:
    return tuple(run("scontrol", "show", "hostnames", nodes).split())
