"""Open MPI: one mpirun, on the first host, for the processes of all. They are one MPI world.

Under disttui the supervisors start Open MPI's daemons on the other hosts; by hand mpirun does that by SSH.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.planning.launchers import mpirun_per_host
from runner.planning.launchers.place import Place, Reasoned, Refusal
from runner.profile import Profile
from runner.protocol.files import LauncherPart

PART: LauncherPart = "mpirun"


def launcher_args(place: Place) -> tuple[str, ...]:
    """The options of the first host; the others' come with the start line.

    The names of the other hosts need only differ: mpirun asks disttui for each. Numbers cost no look-up of a name, and
    these (RFC 1112, class E) belong to no machine.
    """
    if len(place.counts) == 1:
        return mpirun_per_host.launcher_args(place)
    if place.node_rank:
        return ()
    names = ["localhost", *(f"240.0.{node >> 8}.{node & 255}" for node in range(1, len(place.counts)))]
    return _options(place, names)


def variables(_place: Place) -> Mapping[str, Reasoned]:
    """None before the hosts have met."""
    return {}


def by_hand(place: Place) -> tuple[str, ...]:
    """The words of the command that does the same without disttui, by SSH from the first host."""
    if len(place.counts) == 1:
        return mpirun_per_host.by_hand(place)
    names = [host.name for host in place.profile.hosts]
    if place.node_rank:
        return ("echo", f"mpirun on {names[0]} starts the ranks of {names[place.node_rank]}, too")
    exported = (f"MASTER_ADDR={place.master}", f"MASTER_PORT={place.port}", *place.exported)
    each = " ".join(f"{name}=$OMPI_COMM_WORLD_{theirs}" for name, theirs in _NUMBERS.items())
    words = ("mpirun", *_options(place, names), *(word for one in exported for word in ("-x", one)))
    words += ("bash", "-c", f'export {each}; exec "$@"', "rank")
    return (*place.profile.job.wrap, *words, *mpirun_per_host.rank(place))


def refusal(profile: Profile, counts: Mapping[str, int], backend: str) -> Refusal | None:
    """A colon among the job's words."""
    return mpirun_per_host.refusal(profile, counts, backend)


_NUMBERS = {"RANK": "RANK", "LOCAL_RANK": "LOCAL_RANK", "WORLD_SIZE": "SIZE", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}


def _options(place: Place, names: list[str]) -> tuple[str, ...]:
    hosts = ",".join(f"{name}:{count}" for name, count in zip(names, place.counts, strict=True))
    # In the order of the hosts, as torchrun numbers its ranks.
    return ("--host", hosts, *mpirun_per_host.options(place.world_size, "slot:OVERSUBSCRIBE"))
