"""Versions of mpirun with which the hosts would refuse to start, foretold by what the probe has seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.planning.launchers.place import Refusal
from runner.profile import Profile
from runner.profile.disclosure import names
from runner.protocol import open_mpi

INSTALL = "Install Open MPI there, set `activate` to what puts it into PATH, or choose another `launch.launcher`"
_APART = "set launch.launcher to mpirun-per-host"


def refusals(profile: Profile, versions: Mapping[str, str]) -> Iterator[Refusal]:
    """What keeps these hosts from starting.

    Args:
        versions: Host → the first line of its `mpirun --version`, of those where it is known.
    """
    hosts: dict[str, list[str]] = {}
    for host, version in versions.items():
        hosts.setdefault(version, []).append(host)
    others = {version: where for version, where in hosts.items() if not open_mpi.is_open_mpi(version)}
    for version, where in others.items():
        yield Refusal(f"mpirun of {names(where)} is not that of Open MPI: it says {version}", INSTALL)
    if others or profile.launch.launcher != "mpirun" or len(profile.hosts) == 1:
        return
    if len(hosts) > 1:
        sides = "; ".join(f"{version} on {names(where)}" for version, where in hosts.items())
        what = f"one MPI world needs the same Open MPI on all hosts: {sides}"
        yield Refusal(what, f"Install the same, or {_APART}")
    for version, where in hosts.items():
        if not open_mpi.forms_worlds(version):
            what = f"one MPI world over several hosts is built for Open MPI 4: {version} is on {names(where)}"
            yield Refusal(what, f"{_APART[:1].upper()}{_APART[1:]}")
