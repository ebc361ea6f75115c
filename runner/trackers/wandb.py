"""Runs at Weights & Biases, or offline in ./wandb where WANDB_MODE says so. The login is the user's own."""

from __future__ import annotations

import os
from collections.abc import Sequence

import wandb

from disttui.runner.trackers.points import MetricPoint, Tracked


def send(place: str, tracked: Tracked, points: Sequence[MetricPoint]) -> str:
    """Make a run in the project `place`, in one group with the run's other attempts."""
    # What this machine has and does is not what the run had and did.
    settings = wandb.Settings(
        silent=True, console="off", save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True,
        x_disable_machine_info=True, x_save_requirements=False,
    )  # fmt: skip
    made = wandb.init(
        project=place, group=tracked.run, name=tracked.name, id=tracked.name, settings=settings, reinit="create_new",
        config=tracked.config,
    )  # fmt: skip
    for point in points:
        made.log({**point.values, "_timestamp": point.t}, step=point.step)
    made.finish()
    return str(made.url or f"wandb sync {os.path.relpath(made.settings.sync_dir)}")
