"""Checkpoints: the full state in one file on rank 0's host, written whole or not at all."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import Any, Optional

import torch

from .problem import Problem

KEPT = 2
_NAME = re.compile(r"step-(\d+)-a(\d+)\.pt")
State = dict[str, Any]


def saved(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the one to go on from first: the newest attempt's, and of these the last step.

    The attempt comes first because a host that was cut off may still write steps of an attempt that was given up.
    """
    found = [(match, path) for path in folder.glob("step-*.pt") if (match := _NAME.fullmatch(path.name))]
    found.sort(key=lambda item: (int(item[0][2]), int(item[0][1])), reverse=True)
    return [path for _, path in found]


def prepare(folder: Path, attempt: Optional[int]) -> int:
    """Make the folder, and return the attempt that this run's files carry (None: one above all that are there).

    Raises Problem where it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise Problem(
            f"cannot keep checkpoints in {folder}: {error.strerror}: set DISTTUI_CHECKPOINTS to a folder that "
            "can be written, or pass --checkpoint-interval 0"
        ) from None
    if attempt is not None:
        return attempt
    there = saved(folder)
    return int(_NAME.fullmatch(there[0].name)[2]) + 1 if there else 1  # type: ignore[index]


def write(folder: Path, step: int, attempt: int, state: State) -> Path:
    """Write a checkpoint, then drop all but the newest two. Raises OSError or RuntimeError where the disk is full."""
    path = folder / f"step-{step:06d}-a{attempt}.pt"
    unfinished = path.with_suffix(".tmp")
    try:
        with unfinished.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    _sync_folder(folder)
    for old in saved(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest(folder: Path) -> tuple[Optional[Path], State, list[str]]:
    """The newest complete checkpoint with its content, and a note for each broken one that was passed over."""
    notes: list[str] = []
    for path in saved(folder):
        try:
            return path, read(path), notes
        except Problem as problem:
            notes.append(f"{problem}: skipped")
    return None, {}, notes


def read(path: Path) -> State:
    """Read one checkpoint. Raises Problem where it is missing, cut short, damaged or not from this job."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged:
            raise Problem(f"checkpoint {path} is damaged (at {damaged})")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not (isinstance(state, dict) and {"tensors", "step", "samples", "recipe"} <= state.keys()):
            raise Problem(f"{path} is no checkpoint of bytegpt")
    except OSError as error:
        raise Problem(f"checkpoint {path}: {error.strerror or error}") from None
    except zipfile.BadZipFile:
        raise Problem(f"checkpoint {path} is incomplete or damaged") from None
    except Problem:
        raise
    except Exception as error:  # torch.load has no error class of its own
        raise Problem(f"checkpoint {path} cannot be read: {str(error).splitlines()[0]}") from None
    return state
