"""The folder of checkpoints: their names, and which comes first. Without torch."""

from __future__ import annotations

import re
from pathlib import Path

from . import index

NAME = re.compile(r"step-(\d+)-a(\d+)(\.pt|\.tmp)?")
"""Step, attempt, and the form: a file, a checkpoint that is being written, or a folder."""


def saved(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the one to go on from first: the newest attempt's, and of these the last step.

    The attempt comes first because a host that was cut off may still write steps of an attempt that was given up.
    """
    found = [
        (match, path)
        for path in folder.glob("step-*")
        if (match := NAME.fullmatch(path.name)) and (match[3] == ".pt" or (not match[3] and path.is_dir()))
    ]
    found.sort(key=lambda item: (int(item[0][2]), int(item[0][1])), reverse=True)
    return [path for _, path in found]


def is_one(path: Path) -> bool:
    """Whether a path is a checkpoint itself, not a folder of some."""
    return not path.is_dir() or (path / index.NAME).exists() or NAME.fullmatch(path.name) is not None
