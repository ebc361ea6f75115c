"""Distributed checkpoints: a folder to which every rank writes its parts, for storage that all of them see.

Its format is that of torch.distributed.checkpoint. torch's own writer is not used: it pickles its plans from rank to
rank, which needs numpy, and its reader runs what a pickle names.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Union

import torch

from . import index
from .problem import Problem
from .state import Box, Holdings, Shares

PROGRESS = "bytegpt.json"
"""What a checkpoint holds besides tensors: step, samples, recipe."""
FORMAT = 2
"""What the tensors mean, under the same names; 1 had the rows of attention.qkv.weight in another order."""
_LARGEST_PROGRESS = 2**20


class SavedProgress(TypedDict):
    """What a checkpoint tells besides its tensors."""

    step: int
    samples: int
    recipe: Mapping[str, Union[int, float, str]]
    scaling: Mapping[str, float]
    """Of training in fp16, else empty: see LossScale."""
    token: str
    """Drawn at each save: another host may have another run's checkpoint of the same name. Empty in old ones."""


Entry = tuple[str, tuple[int, ...], int, int]
"""Name, offsets in the tensor, first byte in the rank's file, number of bytes."""


def write_parts(folder: Path, rank: int, parts: Shares) -> list[Entry]:
    """Write a rank's file. Raises OSError or RuntimeError where the disk is full."""
    entries: list[Entry] = []
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / file_name(rank)).open("wb") as file:
        for (name, part), tensor in parts.items():
            begin = file.tell()
            torch.save(tensor, file)
            entries.append((name, part.offsets, begin, file.tell() - begin))
        file.flush()
        os.fsync(file.fileno())
    return entries


def file_name(rank: int) -> str:
    """A rank's file, named as torch does."""
    return f"__{rank}_0.distcp"


def finish(folder: Path, where: Holdings, entries: list[list[Entry]], progress: SavedProgress) -> None:
    """Write the index, which makes the checkpoint complete. Raises OSError."""
    places = {
        (name, tuple(offsets)): (file_name(rank), begin, length)
        for rank, written in enumerate(entries)
        for name, offsets, begin, length in written
    }
    tensors = {
        name: index.StoredTensor(
            held.shape,
            held.dtype,
            tuple(
                index.StoredPart(part.offsets, part.sizes, *places[name, part.offsets])
                for part in sorted(held.holders, key=lambda one: one.offsets)
                if all(part.sizes)
            ),
        )
        for name, held in where.items()
    }
    with (folder / PROGRESS).open("w") as file:
        json.dump({**progress, "format": FORMAT}, file)
        _sync(file)
    with (folder / index.NAME).open("wb") as index_file:
        _write_index(index_file, tensors)
        _sync(index_file)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_index(file: Any, tensors: Mapping[str, index.StoredTensor]) -> None:
    """Write the index of these tensors."""
    # A tenth of a second to import, which rank 0 alone needs.
    from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: PLC0415
    from torch.distributed.checkpoint.metadata import (  # noqa: PLC0415
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    storage = {
        MetadataIndex(name, part.offsets): _StorageInfo(part.file, part.begin, part.length)
        for name, stored in tensors.items()
        for part in stored.parts
    }
    described = {
        name: TensorStorageMetadata(
            TensorProperties(dtype=getattr(torch, stored.dtype)),
            torch.Size(stored.shape),
            [ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes)) for part in stored.parts],
        )
        for name, stored in tensors.items()
    }
    pickle.dump(Metadata(described, {name: (name,) for name in described}, storage), file)


def read_progress(folder: Path) -> SavedProgress:
    """Step, samples and recipe of a complete checkpoint. Raises Problem where it is damaged or of another job."""
    try:
        with (folder / PROGRESS).open("rb") as file:
            progress = json.loads(file.read(_LARGEST_PROGRESS))
    except FileNotFoundError:
        raise Problem(f"{folder} is no checkpoint of bytegpt: it has no {PROGRESS}") from None
    except OSError as error:
        raise Problem(f"checkpoint {folder}: {PROGRESS}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        progress = None
    if not is_progress(progress):
        raise Problem(f"checkpoint {folder}: {PROGRESS} is damaged")
    check_format(folder, progress)
    return progress_of(progress)


def progress_of(value: Any) -> SavedProgress:
    """The progress in what `is_progress` holds for one."""
    step, samples, recipe = value["step"], value["samples"], value["recipe"]
    scaling, token = value.get("scaling", {}), value.get("token", "")
    return {"step": step, "samples": samples, "recipe": recipe, "scaling": scaling, "token": token}


def check_format(path: Path, progress: Any) -> None:
    """Raise Problem where a checkpoint was written by another version of this job, and would be misread."""
    if progress.get("format", 1) != FORMAT:
        raise Problem(f"checkpoint {path} was written by another version of bytegpt, which orders weights otherwise")


def is_progress(value: Any) -> bool:
    """Whether a value is what a checkpoint of this job tells besides its tensors."""
    if not (isinstance(value, dict) and {"step", "samples", "recipe"} <= value.keys()):
        return False
    scaling = value.get("scaling", {})
    return (
        all(isinstance(value[name], int) and value[name] >= 0 for name in ("step", "samples"))
        and all(isinstance(one, dict) for one in (value["recipe"], scaling))
        and all(isinstance(number, (int, float)) for number in scaling.values())
        and isinstance(value.get("token", ""), str)
    )


def _read_part(folder: Path, name: str, part: index.StoredPart) -> Any:
    """One part as a tensor on the CPU. Raises Problem where its bytes are damaged."""
    try:
        with (folder / part.file).open("rb") as file:
            view = index.FileSlice(file, part.begin, part.length)
            with zipfile.ZipFile(view) as archive:
                damaged = archive.testzip()
            if damaged:
                raise Problem(f"checkpoint {folder}: {name} in {part.file} is damaged")
            view.seek(0)
            tensor = torch.load(view, map_location="cpu", weights_only=True)
    except OSError as error:
        raise Problem(f"checkpoint {folder}: {part.file}: {error.strerror or error}") from None
    except Problem:
        raise
    except Exception as error:  # torch.load has no error class of its own
        raise Problem(f"checkpoint {folder}: {name} in {part.file} is damaged ({str(error)[:200]})") from None
    if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != part.sizes:
        raise Problem(f"checkpoint {folder}: {name} in {part.file} has another shape than {index.NAME} says")
    return tensor


def _overlap(part: index.StoredPart, offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """For every dimension, what a part and a box share: the slice of the part, and that of the box."""
    for dimension, at in enumerate(part.offsets):
        size, start, length = part.sizes[dimension], offsets[dimension], sizes[dimension]
        begin, end = max(at, start), min(at + size, start + length)
        yield slice(begin - at, max(begin, end) - at), slice(begin - start, max(begin, end) - start)


class PartsReader:
    """Reads tensors of a distributed checkpoint, whole or in part. Raises Problem where it is damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tensors = index.read(folder)

    def __call__(self, name: str, wanted: Box) -> Any:
        stored = self.tensors[name]
        result = torch.empty(wanted.sizes, dtype=getattr(torch, stored.dtype))
        missing = result.numel()
        for part, source, target in self._overlaps(stored, wanted):
            piece = _read_part(self._folder, name, part)[source]
            result[target] = piece
            missing -= piece.numel()
        if missing > 0:
            raise Problem(f"checkpoint {self._folder} is incomplete: {missing:,} numbers of {name} are missing")
        return result

    @staticmethod
    def _overlaps(stored: index.StoredTensor, wanted: Box) -> Iterator[tuple[index.StoredPart, Any, Any]]:
        for part in stored.parts:
            slices = list(_overlap(part, wanted.offsets, wanted.sizes))
            if all(one.stop > one.start for one, _ in slices):
                yield part, tuple(one for one, _ in slices), tuple(other for _, other in slices)


def remove(folder: Path) -> None:
    """Remove a checkpoint, its index first: what is left of an interrupted removal must not look complete."""
    try:
        (folder / index.NAME).unlink(missing_ok=True)
    except OSError:
        pass
    shutil.rmtree(folder, ignore_errors=True)
