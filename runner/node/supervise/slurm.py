"""Slurm's commands, and what a job runs on its nodes: the same supervisor as over SSH, in the foreground of a step."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from typing import TYPE_CHECKING, List, Optional, Tuple

from ...protocol.regular import regular
from .. import journal
from ..child import ask
from ..observe.stacks import collect
from ..problem import Problem
from . import control, warden

if TYPE_CHECKING:
    from ...protocol.files import Given, LeaderPlace, NodeSpec
    from ...protocol.requests import StacksAnswer

_NOT_OURS = (
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASK_PID", "SLURM_GTIDS",
)  # fmt: skip
"""Variables from which a framework would take the one task on each node for a rank: the ranks are torchrun's."""


def main(part: str, words: list[str], node_zip: str) -> None:
    """Do one part of the job: `slurm-node`, `slurm-stop`, `slurm-stacks` or `slurm-end`, each with the run's folder."""
    run_folder, *rest = words
    if part == "slurm-node":
        node(run_folder, node_zip)
    elif part == "slurm-stop":
        stop(run_folder, bool(rest[0]), rest[1])
    elif part == "slurm-stacks":
        stacks(run_folder, rest[0])
    else:
        end(run_folder)


def node(run_folder: str, node_zip: str) -> None:
    """Run one node's part of a run to its end, as the only task of Slurm's step on this node.

    The exit code is 0 even if the run has failed: any other would end the step on all nodes, and with it
    supervisors that are still writing how the run ended.
    """
    rank = int(os.environ["SLURM_NODEID"])
    folder = os.path.join(run_folder, str(rank))
    names = hostnames(os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST") or "")
    for name in _NOT_OURS:
        os.environ.pop(name, None)
    path = os.path.join(folder, "given")
    given: Optional[Given] = journal.read_json(path)
    spec: Optional[NodeSpec] = journal.read_json(os.path.join(folder, "spec.json"))
    if given is None or spec is None:
        sys.exit(f"disttui: {path} not found: the run has already started, or this node cannot see its folder")
    os.unlink(path)
    log = regular(os.path.join(folder, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    if len(names) == len(spec["hosts"]):
        spec["hosts"] = names
    spec["job"] = os.environ.get("SLURM_JOB_ID", "")
    if rank:
        spec["leader"] = _leader(run_folder, float(spec["launch"]["join_timeout"]))
    journal.write_json(os.path.join(folder, "spec.json"), spec)
    warden.watch(folder, node_zip, given, os.umask(0o077))
    cause = journal.read_object(os.path.join(folder, "exit.json")).get("cause")
    if rank == 0 and isinstance(cause, dict) and cause.get("kind") == "host lost":
        # srun would wait for the task of a lost node until Slurm detects the loss, by default after 5 minutes.
        with contextlib.suppress(Problem):
            run("scancel", spec["job"])


def stop(run_folder: str, now: bool, reason: str) -> None:
    """Forward a stop to this node's supervisor."""
    folder = os.path.join(run_folder, os.environ["SLURM_NODEID"])
    control.ask(folder, {"op": "stop", "reason": reason, "now": now})


def stacks(run_folder: str, rank: str) -> None:
    """Print where the ranks of this node are."""
    answer: StacksAnswer = {"ranks": collect(os.path.join(run_folder, rank))}
    sys.stdout.write(json.dumps(answer))


def end(run_folder: str) -> None:
    """End the batch script with the run's exit code, which makes the job's state the run's."""
    found = journal.read_json(os.path.join(run_folder, "0", "exit.json"))
    sys.exit(int(found.get("code", 1)) if isinstance(found, dict) else 1)


def _leader(run_folder: str, limit: float) -> Optional[LeaderPlace]:
    """The leader's place as the leader has written it; None if it has not within `limit` seconds."""
    folder = os.path.join(run_folder, "0")
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        os.listdir(folder)  # makes an NFS client forget that a file did not exist
        up = journal.read_json(os.path.join(folder, "supervisor.json"))
        if isinstance(up, dict) and up.get("gang"):
            place: LeaderPlace = up["gang"]
            return place
        time.sleep(0.1)
    return None


_ANSWER = 30.0
"""Seconds that a command may take: a busy controller answers late."""
_PREFIXES = ("SLURM_", "SRUN_", "SQUEUE_", "SCANCEL_")
"""Prefixes of variables of a job that contains the login, and of the user's defaults for commands other than sbatch:
with SQUEUE_STATES a job might not be listed, with SCANCEL_STATE it might not be cancelled."""


def run(*words: str) -> str:
    """Run a Slurm command; returns its output. Raises Problem."""
    env = {
        name: value
        for name, value in os.environ.items()
        # Variables that would make sbatch submit something other than one job with our name
        if name not in ("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_JOB_NAME", "SBATCH_OUTPUT", "SBATCH_CLUSTERS")
        and (not name.startswith(_PREFIXES) or name == "SLURM_CONF")
    }
    try:
        done = ask(words, _ANSWER, ".", env)  # sbatch starts the job in our folder
    except FileNotFoundError:
        raise Problem(f"{words[0]} not found", "use a Slurm login node as the host") from None
    if done.code is None:
        raise Problem(
            f"{words[0]} did not end in {_ANSWER:.0f} s and 4 MiB of output", "check that slurmctld is running"
        )
    if done.code:
        what = "\n".join(line.replace(f"{words[0]}: error: ", "", 1) for line in done.err.strip().splitlines())
        raise Problem(f"{words[0]}: {what or 'exit code %d' % done.code}")
    return done.out


def hostnames(nodes: str) -> List[str]:
    """The names in Slurm's list of nodes, `n[1-3,7]`; empty if Slurm does not expand it."""
    try:
        return list(_expanded(nodes)) if nodes else []
    except Problem:
        return []


@functools.lru_cache(maxsize=64)
def _expanded(nodes: str) -> Tuple[str, ...]:
    return tuple(run("scontrol", "show", "hostnames", nodes).split())
