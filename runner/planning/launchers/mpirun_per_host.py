"""Open MPI: one mpirun on each host for its own processes, which are an MPI world of their own.

Its rank numbers are those of one host: a shell, and under disttui the rank shim, adds the number of the first.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.planning.launchers import torchrun
from runner.planning.launchers.place import Place, Reasoned, Refusal
from runner.profile import Profile
from runner.protocol.files import LauncherPart

PART: LauncherPart = "mpirun-per-host"


def launcher_args(place: Place) -> tuple[str, ...]:
    """The options of one host."""
    return options(place.num_processes, ":OVERSUBSCRIBE")


def options(processes: int, map_by: str) -> tuple[str, ...]:
    """What any mpirun is given.

    Without `--bind-to none` each rank would be bound to one core. mpirun refuses more processes than cores, and root.
    """
    return ("-np", str(processes), "--bind-to", "none", "--map-by", map_by, "--allow-run-as-root")


def variables(_place: Place) -> Mapping[str, Reasoned]:
    """None before the hosts have met."""
    return {}


def by_hand(place: Place) -> tuple[str, ...]:
    """The words of the command that does the same without disttui."""
    shared = {
        "MASTER_ADDR": place.master,
        "MASTER_PORT": place.port,
        "WORLD_SIZE": place.world_size,
        "LOCAL_WORLD_SIZE": place.num_processes,
        "GROUP_RANK": place.node_rank,
    }
    set_all = tuple(word for name, value in shared.items() for word in ("-x", f"{name}={value}"))
    local = "OMPI_COMM_WORLD_LOCAL_RANK"
    each = f'export LOCAL_RANK=${local} RANK=$(({place.first_rank} + {local})); exec "$@"'
    words = ("mpirun", *launcher_args(place), *set_all, "bash", "-c", each, "rank")
    return (*place.profile.job.wrap, *words, *rank(place))


def refusal(profile: Profile, _counts: Mapping[str, int], _backend: str) -> Refusal | None:
    """A colon among the job's words: mpirun takes what is behind it for another program, wherever it stands."""
    target = profile.job.target
    if ":" not in (target.value, *target.args, *profile.launch.resume_args):
        return None
    return Refusal(
        "mpirun takes an argument ':' of the job for its own, and what follows for another program",
        "Set launch.launcher to torchrun, or have the job take another word",
    )


def rank(place: Place) -> tuple[str, ...]:
    """The words of one rank."""
    job = torchrun.job(*place.target)
    return job[1:] if job[0] == "--no-python" else (place.python, "-u", *job)
