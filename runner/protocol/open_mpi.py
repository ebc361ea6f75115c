"""Which versions of mpirun can start ranks, judged by `--version`: predicted in a plan, decided on the hosts."""

from __future__ import annotations


def is_open_mpi(version: str) -> bool:
    """Whether the version is Open MPI's: MPICH has a program of the same name."""
    return "Open MPI" in version or "OpenRTE" in version


def version_of(said: str) -> str:
    """The line with the version in the program's output, which may begin with warnings; otherwise the first line."""
    lines = said.strip().splitlines() or [""]
    return next(filter(is_open_mpi, lines), lines[0])


def forms_worlds(version: str) -> bool:
    """Whether worlds over several hosts were built and tested with this version."""
    return " 4." in version
