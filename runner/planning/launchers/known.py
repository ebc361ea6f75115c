"""The launchers by their names in a profile."""

from __future__ import annotations

from collections.abc import Mapping

from runner.planning.launchers import accelerate, accelerate_launch, deepspeed, mpirun, torchrun
from runner.planning.launchers.place import Launcher

LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": torchrun,
    "accelerate": accelerate,
    "accelerate-launch": accelerate_launch,
    "mpirun": mpirun,
    "deepspeed": deepspeed,
}
