"""A run as a Slurm job: what is submitted, its batch script, and its place in the queue (docs/formats.md, "Slurm").

The plan shows the script that the login node submits: both generate it here.
"""

from __future__ import annotations

import shlex
from typing import Sequence, TypedDict

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
"""Programs that the login node must have."""
UNSEEN_FOLDER = 73
"""The exit code of a job whose first node cannot see the run's folder."""
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
LIVING = (*WAITING, "RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT", "COMPLETING")
"""States of a job (squeue, %T) that has not ended."""


class Batch(TypedDict):
    """The profile's settings for Slurm."""

    options: list[str]
    """The profile's options for sbatch, as `--name=value`."""
    cpus: int
    """Processors on each node."""
    python: str
    """The interpreter of the node program on the nodes."""


class Queued(TypedDict):
    """A job's state according to squeue."""

    job: str
    state: str
    """`PENDING`, `RUNNING`, …; "" if Slurm no longer knows the job."""
    reason: str
    """Why it waits, or has failed."""
    start: str
    """When it is expected to start, as `2026-01-31T12:00:00`; "" if unknown."""
    nodes: list[str]
    """The names of its nodes, in the order of node ranks; empty while it waits."""


def program(python: str, run_folder: str, part: str) -> str:
    """The shell words that run a part of the node program on a node of the job."""
    # A tilde means the home of the node's user only if it is not quoted.
    interpreter = f"~/{shlex.quote(python[2:])}" if python.startswith("~/") else shlex.quote(python)
    return f"{interpreter} -I -X utf8 {run_folder}/0/node.zip {part} {run_folder}"


def script(batch: Batch, run: str, nodes: int, folder: str) -> str:
    """The batch script.

    Args:
        folder: The run's folder, absolute, without characters that have a meaning for a shell or for Slurm.
    """
    options = [
        f"--job-name={run}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={batch['cpus']}",
        "--no-requeue",
        "--no-kill",  # the supervisors detect a lost node themselves, and decide what happens to the run
        "--open-mode=append",
        f"--output={folder}/0/slurm.log",
        *batch["options"],
    ]
    task = f"--ntasks-per-node=1 --cpus-per-task={batch['cpus']} --kill-on-bad-exit=1 --no-kill"
    return "\n".join([
        "#!/bin/sh",
        *(f"#SBATCH {option}" for option in options),
        f"test -r {folder}/0/node.zip || exit {UNSEEN_FOLDER}",
        f"srun {task} {program(batch['python'], folder, 'slurm-node')}",
        f"exec {program(batch['python'], folder, 'slurm-end')}",
        "",
    ])  # fmt: skip


def submission(script_path: str, batch: Batch) -> Sequence[str]:
    """The command that submits the script. Its options override the login's variables, such as SBATCH_ACCOUNT."""
    return ("sbatch", "--parsable", "--no-requeue", "--export=ALL", *batch["options"], script_path)
