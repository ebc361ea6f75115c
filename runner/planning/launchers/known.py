"""The launchers by their names in a profile."""

from __future__ import annotations

from collections.abc import Mapping

from runner.planning.launchers import accelerate, accelerate_launch, deepspeed, mpirun, mpirun_per_host, torchrun
from runner.planning.launchers.place import Launcher

LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": torchrun,
    "accelerate": accelerate,
    "accelerate-launch": accelerate_launch,
    "mpirun": mpirun,
    "mpirun-per-host": mpirun_per_host,
    "deepspeed": deepspeed,
}
