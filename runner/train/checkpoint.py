"""Checkpoints: the full state in one file, or a folder of parts (sharded.py); written whole or not at all."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Optional

import torch

from . import sharded
from .folder import NAME, saved
from .problem import Problem
from .state import Box

KEPT = 2
State = dict[str, Any]


@dataclass(frozen=True)
class OpenCheckpoint:
    """A checkpoint that is open for reading."""

    path: Path
    progress: sharded.SavedProgress
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str, Box], Any]
    """Gives a part of a tensor, on the CPU; raises Problem where it is damaged."""


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
    there = saved(folder)
    if attempt is None:
        attempt = int(NAME.fullmatch(there[0].name)[2]) + 1 if there else 1  # type: ignore[index]
    for path in folder.glob("step-*.tmp"):
        match = NAME.fullmatch(path.name)
        if match and int(match[2]) <= attempt:  # left by a process that was killed
            remove(path)
    return attempt


def path_of(folder: Path, step: int, attempt: int) -> Path:
    """The folder of a distributed checkpoint; with .pt the file of a whole one, with .tmp while it is written."""
    return folder / f"step-{step:06d}-a{attempt}"


def write(folder: Path, step: int, attempt: int, state: State) -> Path:
    """Write a checkpoint, then drop all but the newest two. Raises OSError or RuntimeError where the disk is full."""
    path = path_of(folder, step, attempt).with_suffix(".pt")
    unfinished = path.with_suffix(".tmp")
    try:
        with unfinished.open("wb") as file:
            torch.save({**state, "format": sharded.FORMAT}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    drop_old(folder)
    return path


def complete(folder: Path, step: int, attempt: int) -> None:
    """Give a distributed checkpoint its name, then drop all but the newest two. Raises OSError."""
    path = path_of(folder, step, attempt)
    _sync_folder(path.with_suffix(".tmp"))
    if path.exists():
        remove(path)
    path.with_suffix(".tmp").replace(path)
    drop_old(folder)


def drop_old(folder: Path) -> None:
    """Remove all but the newest two, once it is on the disk that these are there."""
    _sync_folder(folder)
    for old in saved(folder)[KEPT:]:
        remove(old)


def remove(path: Path) -> None:
    """Remove a checkpoint of either form."""
    if path.is_dir():
        sharded.remove(path)
    else:
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest(
    folder: Path, damaged: Mapping[Path, str] = MappingProxyType({})
) -> tuple[Optional[OpenCheckpoint], list[str]]:
    """The newest complete checkpoint, and a note for each broken one that was passed over.

    Args:
        damaged: What is wrong with those that could be opened, but not read to the end.
    """
    notes: list[str] = []
    for path in saved(folder):
        try:
            if path in damaged:
                raise Problem(damaged[path])
            return open_checkpoint(path), notes
        except Problem as problem:
            notes.append(f"{problem}: skipped")
    return None, notes


def open_checkpoint(path: Path) -> OpenCheckpoint:
    """Open a checkpoint of either form. Raises Problem where it is missing, incomplete, damaged or not from this job.

    The file of a whole one is checked and read in full; the parts of a distributed one are checked when they are read.
    """
    if path.is_dir():
        reader = sharded.PartsReader(path)
        shapes = {name: stored.shape for name, stored in reader.tensors.items()}
        return OpenCheckpoint(path, sharded.read_progress(path), shapes, reader)
    state = _read_file(path)
    tensors = state["tensors"]

    def read(name: str, wanted: Box) -> Any:
        return tensors[name][wanted.slices]

    return OpenCheckpoint(
        path, sharded.progress_of(state), {name: tuple(tensor.shape) for name, tensor in tensors.items()}, read
    )


def _read_file(path: Path) -> State:
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged:
            raise Problem(f"checkpoint {path} is damaged (at {damaged})")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not (isinstance(state, dict) and isinstance(state.get("tensors"), dict) and sharded.is_progress(state)):
            raise Problem(f"{path} is no checkpoint of bytegpt")
        sharded.check_format(path, state)
    except OSError as error:
        raise Problem(f"checkpoint {path}: {error.strerror or error}") from None
    except zipfile.BadZipFile:
        raise Problem(f"checkpoint {path} is incomplete or damaged") from None
    except Problem:
        raise
    except Exception as error:  # torch.load has no error class of its own
        raise Problem(f"checkpoint {path} cannot be read: {str(error).splitlines()[0]}") from None
    return state
