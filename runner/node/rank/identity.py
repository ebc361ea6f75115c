"""Determines which rank this process is, under every launcher, and writes its reports."""

from __future__ import annotations

import json
import os
import time
from typing import Any, MutableMapping, NamedTuple, Tuple

from ...protocol.regular import append
from ..problem import Problem

_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")

# The variables of other launchers; "" if they set none. The first whose rank is set counts. Slurm comes last: its
# variables are also set for every other launcher that is started inside an allocation.
_OTHERS: Tuple[Tuple[str, str, str, str, str], ...] = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK"),  # DeepSpeed
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
)


FIRST_RANK = "DISTTUI_FIRST_RANK"
"""The rank of this host's first process, if each host has an mpirun of its own, which counts from 0."""
_LOCAL = "OMPI_COMM_WORLD_LOCAL_RANK"


class RankIdentity(NamedTuple):
    """The ranks of this process, and the sizes of the run and of its host."""

    rank: int
    local_rank: int
    world_size: int


def adopt(env: MutableMapping[str, str]) -> RankIdentity:
    """Set torch's missing variables from the launcher's own.

    Raises Problem if no launcher has set a rank.
    """
    first = env.pop(FIRST_RANK, "")
    if first.isdigit() and env.get(_LOCAL, "").isdigit():
        env.update(RANK=str(int(first) + int(env[_LOCAL])), LOCAL_RANK=env[_LOCAL])
    theirs = next((names for names in _OTHERS if names[0] in env), ())
    for name, other in zip(_TORCH, theirs):  # noqa: B905
        if other in env:
            env.setdefault(name, env[other])
    try:
        return RankIdentity(int(env["RANK"]), int(env.get("LOCAL_RANK", 0)), int(env["WORLD_SIZE"]))
    except (KeyError, ValueError):
        raise Problem(
            "the launcher did not set this process's rank (RANK=%r, WORLD_SIZE=%r)"
            % (env.get("RANK"), env.get("WORLD_SIZE")),
            "Start it by torchrun, Open MPI, MPICH, Slurm or DeepSpeed.",
        ) from None


class Reports:
    """This rank's records in ranks.jsonl."""

    def __init__(self, folder: str, place: RankIdentity) -> None:
        self._path = os.path.join(folder, "ranks.jsonl")
        self._who = {"rank": place.rank, "local_rank": place.local_rank, "pid": os.getpid()}

    def say(self, kind: str, **fields: Any) -> None:
        """Append one record. A full disk must not end the training: the record is then dropped."""
        record = {"t": time.time(), **self._who, "e": kind, **fields}
        append(self._path, (json.dumps(record) + "\n").encode())
