"""DeepSpeed's launcher of one host, started on each: no pdsh, and hosts may be unequal."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from runner.planning.launchers import torchrun
from runner.planning.launchers.place import Place, Reasoned, Refusal
from runner.profile import Profile
from runner.protocol.files import LauncherPart

PART: LauncherPart = "deepspeed"


def launcher_args(place: Place) -> tuple[str, ...]:
    """The options of one host. A script gets `--local_rank=N`, as DeepSpeed's own examples expect it."""
    flags = () if place.target.kind in ("script", "module") else ("--no_local_rank",)
    return (f"--world_info={_world_info(place)}", f"--node_rank={place.node_rank}", *flags)


def variables(place: Place) -> Mapping[str, Reasoned]:
    """Which kind of device it is for: else each rank finds out."""
    if place.backend != "gloo":
        return {}
    return {"DS_ACCELERATOR": Reasoned("cpu", "this run computes on the CPU")}


def by_hand(place: Place) -> tuple[str, ...]:
    """The words of the command that does the same without disttui."""
    address = (f"--master_addr={place.master}", f"--master_port={place.port}")
    words = (place.python, "-m", "deepspeed.launcher.launch", *launcher_args(place), *address)
    job = torchrun.job(*place.target)
    flags = {"-m": "--module", "--no-python": "--no_python"}
    return (*place.profile.job.wrap, *words, flags.get(job[0], job[0]), *job[1:])


def refusal(_profile: Profile, _counts: Mapping[str, int], _backend: str) -> Refusal | None:
    """None: it starts any run."""
    return None


def _world_info(place: Place) -> str:
    """The devices of every host, which DeepSpeed makes CUDA_VISIBLE_DEVICES of; -1 hides all GPUs."""
    found = {}
    for host, count, gpus in zip(place.profile.hosts, place.counts, place.gpus, strict=True):
        if place.backend == "gloo" and not gpus:
            found[host.name] = [-1] * count
        else:
            found[host.name] = list(gpus[:count]) if gpus and len(gpus) >= count else list(range(count))
    return base64.urlsafe_b64encode(json.dumps(found, separators=(",", ":")).encode()).decode()
