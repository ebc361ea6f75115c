"""DeepSpeed's launcher of one host, started on each: no pdsh, and hosts may be unequal."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from disttui.runner.planning.launchers import torchrun
from disttui.runner.planning.launchers.place import Launcher, Place, Reasoned


class DeepSpeed(Launcher):
    """DeepSpeed's launcher; it starts any run."""

    PART = "deepspeed"

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        """Options. A script gets `--local_rank=N`, as DeepSpeed's own examples expect it."""
        flags = () if place.target.kind in ("script", "module") else ("--no_local_rank",)
        return (f"--world_info={_world_info(place)}", f"--node_rank={place.node_rank}", *flags)

    def variables(self, place: Place) -> Mapping[str, Reasoned]:
        """Which kind of device it is for: else each rank finds out."""
        return {"DS_ACCELERATOR": Reasoned("cpu", "this run computes on the CPU")} if place.backend == "gloo" else {}

    def by_hand(self, place: Place) -> tuple[str, ...]:
        address = (f"--master_addr={place.master}", f"--master_port={place.port}")
        words = (place.python, "-m", "deepspeed.launcher.launch", *self.launcher_args(place), *address)
        return (*place.around, *words, *torchrun.job_in_other_words(place))


def _world_info(place: Place) -> str:
    """The devices of every host, which DeepSpeed makes CUDA_VISIBLE_DEVICES of; -1 hides all GPUs."""
    found = {}
    for host, count, gpus in zip(place.profile.hosts, place.counts, place.gpus, strict=True):
        if place.backend == "gloo" and not gpus:
            found[host.name] = [-1] * count
        else:
            found[host.name] = list(gpus[:count]) if gpus and len(gpus) >= count else list(range(count))
    return base64.urlsafe_b64encode(json.dumps(found, separators=(",", ":")).encode()).decode()
