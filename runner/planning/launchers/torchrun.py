"""torchrun: the options of one host, for the node program and for a hand that types them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.planning.launchers.place import Place, Reasoned, Refusal
from runner.profile import Profile
from runner.protocol.files import LauncherPart

PART: LauncherPart = "torchrun"
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


def launcher_args(place: Place) -> tuple[str, ...]:
    """The options of one host."""
    return options(nnodes=len(place.counts), num_processes=place.num_processes, node_rank=place.node_rank)


def variables(_place: Place) -> Mapping[str, Reasoned]:
    """None: torchrun itself sets what ranks need."""
    return {}


def by_hand(place: Place) -> tuple[str, ...]:
    """The words of the command that does the same without disttui."""
    address = ("--master-addr", place.master, "--master-port", str(place.port))
    words = (place.python, "-m", "torch.distributed.run", *launcher_args(place), *address, *job(*place.target))
    return (*place.profile.job.wrap, *words)


def refusal(_profile: Profile, _counts: Mapping[str, int], _backend: str) -> Refusal | None:
    """None: it starts any run."""
    return None


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
