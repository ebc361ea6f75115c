"""`accelerate launch` itself, once on each host. It gives every machine as many processes."""

from __future__ import annotations

from collections.abc import Mapping

from runner.planning.launchers import torchrun
from runner.planning.launchers.accelerate_settings import layout_refusal, settings
from runner.planning.launchers.place import Place, Reasoned, Refusal
from runner.profile import Profile
from runner.protocol.files import LauncherPart

PART: LauncherPart = "accelerate-launch"


def launcher_args(place: Place) -> tuple[str, ...]:
    """The options of one host.

    `--multi_gpu` on CPUs, too, where ACCELERATE_USE_CPU says the rest: with `--cpu` each host would train alone.
    """
    given = settings(place).get("ACCELERATE_MIXED_PRECISION")
    several = ("--multi_gpu",) if place.world_size > 1 else ("--cpu",) if place.backend == "gloo" else ()
    return (
        *several,
        "--num_machines", str(len(place.counts)),
        "--num_processes", str(place.world_size),
        "--machine_rank", str(place.node_rank),
        "--mixed_precision", given.value if given else "no",
        "--dynamo_backend", "no",
        "--rdzv_backend", "static",
        "--rdzv_conf", f"timeout={torchrun.RENDEZVOUS_TIMEOUT}",
        "--max_restarts", "0",
        "--same_network",
    )  # fmt: skip


def variables(place: Place) -> Mapping[str, Reasoned]:
    """The profile's parallel settings; `accelerate launch` leaves them to the script as they are."""
    return {name: one for name, one in settings(place).items() if name != "ACCELERATE_MIXED_PRECISION"}


def by_hand(place: Place) -> tuple[str, ...]:
    """The words of the command that does the same without disttui."""
    address = ("--main_process_ip", place.master, "--main_process_port", str(place.port))
    words = (place.python, "-m", "accelerate.commands.launch", *launcher_args(place), *address)
    return (*place.profile.job.wrap, *words, *_job(place))


def refusal(profile: Profile, counts: Mapping[str, int], backend: str) -> Refusal | None:
    """Unequal hosts, since it divides the total by the machines and drops the rest without a word; and what Accelerate
    cannot divide."""
    if len(set(counts.values())) == 1:
        return layout_refusal(profile, counts, backend)
    shown = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:6])
    return Refusal(
        f"accelerate launch gives every host as many processes, and num_processes is unequal: {shown}",
        "Set launch.launcher to accelerate, which allows it, or give all hosts the same num_processes",
    )


def _job(place: Place) -> tuple[str, ...]:
    words = torchrun.job(*place.target)
    flags = {"-m": "--module", "--no-python": "--no_python"}
    return (flags.get(words[0], words[0]), *words[1:])
