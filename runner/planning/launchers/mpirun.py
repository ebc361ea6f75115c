"""Open MPI: one mpirun on each host, or one for all.

Under disttui the supervisors start Open MPI's daemons on the other hosts; by hand mpirun does that by SSH.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from disttui.runner.planning.launchers import torchrun
from disttui.runner.planning.launchers.place import Launcher, Place, Refusal
from disttui.runner.planning.processes import hosts_by_value
from disttui.runner.profile import Profile
from disttui.runner.profile.effects import names
from disttui.runner.protocol import open_mpi
from disttui.runner.protocol.files import LauncherPart

_NUMBERS = {"RANK": "RANK", "LOCAL_RANK": "LOCAL_RANK", "WORLD_SIZE": "SIZE", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}


class MpirunPerHost(Launcher):
    """One mpirun on each host for its own processes, which are an MPI world of their own.

    Its rank numbers are those of one host: a shell, and under disttui the rank shim, adds the number of the first.
    """

    PART: ClassVar[LauncherPart] = "mpirun-per-host"

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        return _options(place.num_processes, ":OVERSUBSCRIBE")

    def by_hand(self, place: Place) -> tuple[str, ...]:
        shared = {
            "MASTER_ADDR": place.master,
            "MASTER_PORT": place.port,
            "WORLD_SIZE": place.world_size,
            "LOCAL_WORLD_SIZE": place.num_processes,
            "GROUP_RANK": place.node_rank,
        }
        local = "OMPI_COMM_WORLD_LOCAL_RANK"
        each = f"LOCAL_RANK=${local} RANK=$(({place.first_rank} + {local}))"
        exported = [f"{name}={value}" for name, value in shared.items()]
        return _by_hand(place, MpirunPerHost.launcher_args(self, place), exported, each)

    def refusal(self, profile: Profile, _counts: Mapping[str, int], _backend: str) -> Refusal | None:
        """A colon among the job's words: mpirun takes what is behind it for another program, wherever it stands."""
        target = profile.job.target
        if ":" not in (target.value, *target.args, *profile.launch.resume_args):
            return None
        return Refusal(
            "mpirun takes an argument ':' of the job for its own, and what follows for another program",
            "Set launch.launcher to torchrun, or give the job's option another name",
        )


class Mpirun(MpirunPerHost):
    """One mpirun, on the first host, for the processes of all. They are one MPI world."""

    PART = "mpirun"

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        """The options of the first host; the others' come with the start line.

        The names of the other hosts need only differ: mpirun asks disttui for each. Numbers cost no look-up of a name,
        and these (RFC 1112, class E) belong to no machine.
        """
        if len(place.counts) == 1:
            return super().launcher_args(place)
        if place.node_rank:
            return ()
        return _world(
            place, ["localhost", *(f"240.0.{node >> 8}.{node & 255}" for node in range(1, len(place.counts)))]
        )

    def by_hand(self, place: Place) -> tuple[str, ...]:
        if len(place.counts) == 1:
            return super().by_hand(place)
        hosts = [host.name for host in place.profile.hosts]
        if place.node_rank:
            return ("echo", f"mpirun on {hosts[0]} also starts the ranks of {hosts[place.node_rank]}")
        exported = (f"MASTER_ADDR={place.master}", f"MASTER_PORT={place.port}", *place.exported)
        each = " ".join(f"{name}=$OMPI_COMM_WORLD_{theirs}" for name, theirs in _NUMBERS.items())
        return _by_hand(place, _world(place, hosts), exported, each)


def _options(processes: int, map_by: str) -> tuple[str, ...]:
    """What any mpirun is given.

    Without `--bind-to none` each rank would be bound to one core. mpirun refuses more processes than cores, and root.
    """
    return ("-np", str(processes), "--bind-to", "none", "--map-by", map_by, "--allow-run-as-root")


def _world(place: Place, hosts: Sequence[str]) -> tuple[str, ...]:
    listed = ",".join(f"{name}:{count}" for name, count in zip(hosts, place.counts, strict=True))
    # In the order of the hosts, as torchrun numbers its ranks.
    return ("--host", listed, *_options(place.world_size, "slot:OVERSUBSCRIBE"))


def _by_hand(place: Place, options: Sequence[str], exported: Sequence[str], each: str) -> tuple[str, ...]:
    """The command; `each` is what a shell exports in every rank."""
    job = torchrun.job(*place.target)
    rank = job[1:] if job[0] == "--no-python" else (place.python, "-u", *job)
    words = ("mpirun", *options, *(word for one in exported for word in ("-x", one)))
    return (*place.around, *words, "bash", "-c", f'export {each}; exec "$@"', "rank", *rank)


INSTALL = "Install Open MPI there, set `activate` to what puts it into PATH, or choose another `launch.launcher`"
_APART = "set launch.launcher to mpirun-per-host"


def refusals(profile: Profile, versions: Mapping[str, str]) -> Iterator[Refusal]:
    """What keeps these hosts from starting.

    Args:
        versions: Host → the first line of its `mpirun --version`, of those where it is known.
    """
    hosts = hosts_by_value(versions.items())
    others = {version: where for version, where in hosts.items() if not open_mpi.is_open_mpi(version)}
    for version, where in others.items():
        yield Refusal(f"mpirun of {names(where)} is not Open MPI: it printed {version}", INSTALL)
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
