"""What the app leaves to the command line, for its help and its palette."""

from __future__ import annotations

from typing import NamedTuple


class ShellCommand(NamedTuple):
    """A command."""

    words: str
    """Without `disttui`."""
    purpose: str
    """At most 50 characters: with the command, a line of the help on 80 columns."""


SHELL_COMMANDS = (
    ShellCommand("who", "who uses which GPU, by lease and by process"),
    ShellCommand("lease", "keep GPUs for yourself; release gives them back"),
    ShellCommand("queue", "runs of all users that wait, and what for"),
    ShellCommand("sweep", "a queued run for each value, and their results"),
    ShellCommand("diff", "two runs: profile, code, versions, result"),
    ShellCommand("weights", "a checkpoint's weights as one file"),
    ShellCommand("pull", "checkpoints and results, copied to here"),
    ShellCommand("metrics", "metrics for TensorBoard, wandb, trackio, mlflow"),
    ShellCommand("library", "libraries of a team: add, diff, history, restore"),
    ShellCommand("import", "a profile from Accelerate, DeepSpeed or Slurm"),
    ShellCommand("export", "files that run a profile without disttui"),
    ShellCommand("orphans", "what ended runs have left on hosts"),
)
