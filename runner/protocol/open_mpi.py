"""Which versions of mpirun start ranks, by what they say to `--version`: foretold by a plan, decided on the hosts."""

from __future__ import annotations


def is_open_mpi(version: str) -> bool:
    """Whether it is Open MPI's: MPICH has a program of the same name."""
    return "Open MPI" in version or "OpenRTE" in version


def version_of(said: str) -> str:
    """Its line among what the program says, before which may be warnings; else the first line, which may be empty."""
    lines = said.strip().splitlines() or [""]
    return next(filter(is_open_mpi, lines), lines[0])


def forms_worlds(version: str) -> bool:
    """Whether it is one with which a world over several hosts was built and tried."""
    return " 4." in version
