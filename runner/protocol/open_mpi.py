"""Which versions of mpirun start ranks, by what they say to `--version`: foretold by a plan, decided on the hosts."""

from __future__ import annotations


def is_open_mpi(version: str) -> bool:
    """Whether it is Open MPI's: MPICH has a program of that name, too."""
    return "Open MPI" in version or "OpenRTE" in version


def forms_worlds(version: str) -> bool:
    """Whether it is one with which a world over several hosts was built and tried."""
    return " 4." in version
