"""torchrun: the options of one host, for the node program and for a hand that types them."""

from __future__ import annotations

from collections.abc import Sequence

from disttui.runner.planning.launchers.place import Launcher, Place
from disttui.runner.profile import Profile

RENDEZVOUS_TIMEOUT = 90
"""Seconds that torchrun waits for the other hosts. Its own 600 s of silence hide a host that never comes."""


def options(*, nnodes: int, num_processes: int, node_rank: int) -> tuple[str, ...]:
    """Everything that is known before the start; master, port and rendezvous id come with the word to go.

    `--shutdown-timeout` is left to the variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT: torch before 2.11 refuses the option.
    """
    return (
        "--nnodes", str(nnodes),
        "--nproc-per-node", str(num_processes),
        "--node-rank", str(node_rank),
        "--rdzv-backend", "static",
        "--rdzv-conf", f"timeout={RENDEZVOUS_TIMEOUT}",
        "--max-restarts", "0",
    )  # fmt: skip


def preload(profile: Profile) -> tuple[tuple[str, ...], str]:
    """What a host imports once for its ranks, which it then forks, and why; nothing: each rank imports for itself."""
    launch, job = profile.launch, profile.job
    own = "each rank imports for itself: "
    if not launch.preload:
        return (), f"{own}launch.preload is empty"
    if launch.launcher not in ("torchrun", "accelerate", "slurm"):
        return (), f"{own}{launch.launcher} starts the ranks"
    for key, used in (
        ("container", profile.container), ("job.wrap", job.wrap), ("job.command", job.command),
        ("launch.instrument: false", not launch.instrument),
    ):  # fmt: skip
        if used:
            return (), f"{own}{key}"
    return launch.preload, f"{', '.join(launch.preload)}: imported once on each host, which forks its ranks"


class Torchrun(Launcher):
    """torchrun, which itself sets what ranks need."""

    PART = "torchrun"

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        return options(nnodes=len(place.counts), num_processes=place.num_processes, node_rank=place.node_rank)

    def by_hand(self, place: Place) -> tuple[str, ...]:
        address = ("--master-addr", place.master, "--master-port", str(place.port))
        words = (place.python, "-m", "torch.distributed.run", *self.launcher_args(place), *address)
        return (*place.around, *words, *job(*place.target))


def job(kind: str, value: str, args: Sequence[str]) -> tuple[str, ...]:
    """The end of torchrun's command line: what it starts for each rank.

    Args:
        kind: builtin, script, module or command.
        value: The zip, script, module or first word of the command.
    """
    if kind == "module":
        return ("-m", value, *args)
    if kind == "command":
        return ("--no-python", value, *args)
    # A leading dash would be read as one of torchrun's own options.
    return (f"./{value}" if value.startswith("-") else value, *args)


def job_in_other_words(place: Place) -> tuple[str, ...]:
    """The same for a launcher that has other names for torchrun's options."""
    words = job(*place.target)
    flags = {"-m": "--module", "--no-python": "--no_python"}
    return (flags.get(words[0], words[0]), *words[1:])
