"""Entry point of the shipped zip: the first argument chooses the part."""

from __future__ import annotations

import os
import sys


def main(argv: list[str]) -> None:
    """Run one part: `warden FOLDER`, a launcher, `shim …`, `envexec COMMAND…`, `shell REQUEST`, or a job's, as
    `slurm-node FOLDER`."""
    part, rest = (argv[0], argv[1:]) if argv else ("", [])
    if part == "warden":
        from .supervise import warden

        warden.main(rest[0], os.path.abspath(sys.argv[0]))
    elif part == "setup":
        from .supervise import setup, steps

        steps.main(setup.set_up, os.path.dirname(os.path.abspath(sys.argv[0])))
    elif part == "stage":
        from .serve import staging
        from .supervise import steps

        steps.main(staging.stage, "")
    elif part == "environment":
        from .supervise import environment, steps

        steps.main(environment.build, os.path.dirname(os.path.abspath(sys.argv[0])))
    elif part.startswith("slurm-"):
        from .supervise import slurm

        slurm.main(part, rest, os.path.abspath(sys.argv[0]))
    elif part in ("torchrun", "accelerate-launch", "mpirun", "mpirun-per-host", "deepspeed"):
        from .rank import launcher

        launcher.main(part, rest)
    elif part == "shim":
        from .rank import shim

        shim.main(rest)
    elif part.startswith("--local_rank="):
        # DeepSpeed puts it after the script's name, and it takes this program for the script.
        from .rank import shim

        shim.main(rest[1:], first=[part])
    elif part == "shell":
        from .serve import shell

        shell.main(rest[0])
    elif part == "envexec":
        from .rank import parent

        parent.execute(rest)
    else:
        sys.exit(f"disttui: {part!r} is not a part of the node program")
