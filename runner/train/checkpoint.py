"""Checkpoints: a folder with the parts of every rank, written completely or not at all; see index.py for the format.

torch's own writer of distributed checkpoints is not used: it pickles its plans from rank to rank, which needs numpy,
and its reader runs what a pickle names.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Optional

import torch

from . import index
from .problem import Problem
from .state import Box, Holdings, Shares

KEPT = 2
Entry = tuple[str, int, int, tuple[int, ...], tuple[int, ...]]
"""Name, first byte in the rank's file, checksum, offsets in the tensor, sizes."""


def prepare(folder: Path, attempt: Optional[int]) -> int:
    """Create the folder, and return the attempt in the names of this run's files (None: one above all existing ones).

    Raises Problem if it cannot be written.
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
    there = index.saved(folder)
    if attempt is None:
        attempt = int(index.CHECKPOINT_NAME.fullmatch(there[0].name)[2]) + 1 if there else 1  # type: ignore[index]
    for path in folder.glob("step-*.tmp"):
        match = index.CHECKPOINT_NAME.fullmatch(path.name)
        if match and int(match[2]) <= attempt:  # left by a process that was killed
            remove(path)
    return attempt


def path_of(folder: Path, step: int, attempt: int) -> Path:
    """The folder of a checkpoint; with .tmp while it is being written."""
    return folder / f"step-{step:06d}-a{attempt}"


def write_parts(folder: Path, rank: int, parts: Shares) -> list[Entry]:
    """Write a rank's file. Raises OSError if the disk is full."""
    entries: list[Entry] = []
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"rank-{rank}.bin").open("wb") as file:
        for (name, part), tensor in parts.items():
            data = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())  # without numpy, and without a copy
            entries.append((name, file.tell(), zlib.crc32(data), part.offsets, part.sizes))
            file.write(data)
        _sync(file)
    return entries


def finish(folder: Path, where: Holdings, entries: Sequence[Sequence[Entry]], progress: index.SavedProgress) -> None:
    """Write the index, give the checkpoint its name, then drop all but the newest two. Raises OSError."""
    tensors: dict[str, dict[str, Any]] = {
        name: {"shape": held.shape, "dtype": held.dtype, "parts": []} for name, held in where.items()
    }
    for rank, written in enumerate(entries):
        for name, *place in written:
            tensors[name]["parts"].append([f"rank-{rank}.bin", *place])
    with (folder / index.NAME).open("w") as file:
        json.dump({"format": index.FORMAT, **progress, "tensors": tensors}, file)
        _sync(file)
    _sync_folder(folder)
    path = folder.with_suffix("")
    if path.exists():
        remove(path)
    folder.replace(path)
    _sync_folder(path.parent)
    for old in index.saved(path.parent)[KEPT:]:
        remove(old)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Remove a checkpoint, its index first: the rest of an interrupted removal must not look complete."""
    try:
        (folder / index.NAME).unlink(missing_ok=True)
    except OSError:
        pass
    shutil.rmtree(folder, ignore_errors=True)


class OpenCheckpoint:
    """A checkpoint that is open for reading. Raises Problem if it is missing, incomplete or not from this job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress, self.tensors = index.read(path)

    def read(self, name: str, wanted: Box) -> Any:
        """A part of a tensor, on the CPU. Raises Problem if it is damaged."""
        stored = self.tensors[name]
        result = torch.zeros(wanted.sizes, dtype=getattr(torch, stored.dtype))
        for part in stored.parts:
            slices = list(_overlap(part, wanted))
            if all(one.stop > one.start for one, _ in slices):
                data = bytearray().join(part.pieces(f"checkpoint {self.path}: {name} in {part.path.name}"))
                tensor = torch.frombuffer(data, dtype=result.dtype).view(part.sizes)
                result[tuple(other for _, other in slices)] = tensor[tuple(one for one, _ in slices)]
        return result


def _overlap(part: index.StoredPart, wanted: Box) -> Iterator[tuple[slice, slice]]:
    """For every dimension, the overlap of a part and a box: as a slice of the part, and as a slice of the box."""
    for at, size, start, length in zip(part.offsets, part.sizes, wanted.offsets, wanted.sizes):  # noqa: B905
        begin, end = max(at, start), min(at + size, start + length)
        yield slice(begin - at, max(begin, end) - at), slice(begin - start, max(begin, end) - start)


def newest(
    folder: Path, damaged: Mapping[Path, str] = MappingProxyType({})
) -> tuple[Optional[OpenCheckpoint], list[str]]:
    """The newest complete checkpoint, and a note for each broken one that was skipped.

    Args:
        damaged: What is wrong with those that could be opened, but not read to the end.
    """
    notes: list[str] = []
    for path in index.saved(folder):
        try:
            if path in damaged:
                raise Problem(damaged[path])
            return OpenCheckpoint(path), notes
        except Problem as problem:
            notes.append(f"{problem}: skipped")
    return None, notes
