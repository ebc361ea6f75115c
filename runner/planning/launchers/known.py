"""The launchers by their names in a profile."""

from __future__ import annotations

from collections.abc import Mapping

from disttui.runner.planning.launchers.accelerate import Accelerate, AccelerateLaunch
from disttui.runner.planning.launchers.deepspeed import DeepSpeed
from disttui.runner.planning.launchers.mpirun import Mpirun, MpirunPerHost
from disttui.runner.planning.launchers.place import Launcher
from disttui.runner.planning.launchers.torchrun import Torchrun

LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": Torchrun(),
    "accelerate": Accelerate(),
    "accelerate-launch": AccelerateLaunch(),
    "mpirun": Mpirun(),
    "mpirun-per-host": MpirunPerHost(),
    "deepspeed": DeepSpeed(),
}
