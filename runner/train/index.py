"""The index of a distributed checkpoint: which part of which tensor lies where; read without running its pickle's code.

The format is that of torch.distributed.checkpoint (DCP), so that torch's own tools read what this job writes:
`.metadata`, written last, and files of parts, each of which is what torch.save makes of a tensor.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from .problem import Problem

NAME = ".metadata"
_LARGEST = 2**30
"""Bytes of an index: some hundred for each part of a tensor."""
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
}  # fmt: skip


@dataclass(frozen=True)
class StoredPart:
    """A box of a tensor, and where its bytes lie."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint: all its parts together are the whole."""

    shape: tuple[int, ...]
    dtype: Any
    parts: tuple[StoredPart, ...]


class _Unpickler(pickle.Unpickler):
    """Knows the classes of an index and no others: a checkpoint may come from anybody."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in an index")


def write(file: Any, tensors: Mapping[str, StoredTensor]) -> None:
    """Write the index of these tensors."""
    storage = {
        MetadataIndex(name, part.offsets): _StorageInfo(part.file, part.begin, part.length)
        for name, stored in tensors.items()
        for part in stored.parts
    }
    described = {
        name: TensorStorageMetadata(
            TensorProperties(dtype=stored.dtype),
            torch.Size(stored.shape),
            [ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes)) for part in stored.parts],
        )
        for name, stored in tensors.items()
    }
    pickle.dump(Metadata(described, {name: (name,) for name in described}, storage), file)


def read(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a distributed checkpoint.

    Raises Problem where it has no index, the index is damaged or names a part that is not there in full.
    """
    path = folder / NAME
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise Problem(f"checkpoint {folder}: {NAME} is larger than {_LARGEST >> 20} MiB")
        metadata = _Unpickler(io.BytesIO(content)).load()
        tensors = {
            str(name): _stored(str(name), described, metadata.storage_data)
            for name, described in metadata.state_dict_metadata.items()
            if isinstance(described, TensorStorageMetadata)
        }
    except OSError as error:
        raise Problem(f"checkpoint {folder}: {NAME}: {error.strerror or error}") from None
    except Problem:
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        raise Problem(f"checkpoint {folder}: {NAME} is damaged ({str(error)[:200] or type(error).__name__})") from None
    _check_files(folder, tensors)
    return tensors


def _stored(name: str, described: Any, storage: Any) -> StoredTensor:
    parts = []
    for chunk in described.chunks:
        place = storage[MetadataIndex(name, chunk.offsets)]
        if "/" in place.relative_path or place.relative_path in ("", ".", ".."):
            raise Problem(f"a part of {name} lies outside, in {place.relative_path!r}")
        if getattr(place, "transform_descriptors", None):
            raise Problem(f"a part of {name} is stored by an extension ({place.transform_descriptors[0]})")
        parts.append(
            StoredPart(
                tuple(chunk.offsets), tuple(chunk.sizes), place.relative_path, int(place.offset), int(place.length)
            )
        )
    return StoredTensor(tuple(described.size), described.properties.dtype, tuple(parts))


def _check_files(folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
    ends: dict[str, int] = {}
    for stored in tensors.values():
        for part in stored.parts:
            ends[part.file] = max(ends.get(part.file, 0), part.begin + part.length)
    for name, end in sorted(ends.items()):
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise Problem(f"checkpoint {folder} is incomplete: {name}: {error.strerror}") from None
        if size < end:
            raise Problem(f"checkpoint {folder} is incomplete: {name} has {size:,} bytes of {end:,}")


class _Slice(io.RawIOBase):
    """A part of a file as a file of its own: its bytes need not be in memory twice."""

    def __init__(self, file: Any, begin: int, length: int) -> None:
        self._file = file
        self._begin = begin
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._length)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._begin + self._at)
        count = max(0, min(len(buffer), self._length - self._at))
        read: int = self._file.readinto(memoryview(buffer)[:count])
        self._at += read
        return read


def read_part(folder: Path, name: str, part: StoredPart) -> Any:
    """One part as a tensor on the CPU. Raises Problem where its bytes are damaged."""
    try:
        with (folder / part.file).open("rb") as file:
            view = _Slice(file, part.begin, part.length)
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
        raise Problem(f"checkpoint {folder}: {name} in {part.file} has another shape than {NAME} says")
    return tensor


def overlap(part: StoredPart, offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """For every dimension, what a part and a box share: the slice of the part, and that of the box."""
    for dimension, at in enumerate(part.offsets):
        size, start, length = part.sizes[dimension], offsets[dimension], sizes[dimension]
        begin, end = max(at, start), min(at + size, start + length)
        yield slice(begin - at, max(begin, end) - at), slice(begin - start, max(begin, end) - start)
