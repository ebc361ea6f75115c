"""The index of a distributed checkpoint: which part of which tensor lies where; read without torch, and runs no code.

The format is that of torch.distributed.checkpoint (DCP), so that torch's own tools read what this job writes:
`.metadata`, written last, and files of parts, each of which is what torch.save makes of a tensor.
"""

from __future__ import annotations

import errno
import io
import math
import os
import pickle
import stat
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from . import pickles
from .problem import Problem

NAME = ".metadata"
DTYPES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip
"""Types of numbers that are read, with their bytes."""
MOST_SHARED = 16
"""How often the bytes of a file may count: tensors may share them, and a small file must not become an endless one."""


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
    dtype: str
    parts: tuple[StoredPart, ...]


class _Record:
    """Takes the place of torch's classes: it keeps what it is given, and does nothing."""

    def __init__(self, *_: object) -> None:
        pass

    key: tuple[str, tuple[int, ...] | None] | None = None
    """Of a MetadataIndex; its hash takes no time."""

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict) and len(state) <= pickles.FEW:
            self.__dict__.update(state)
            fqn, offset = self.__dict__.get("fqn"), self.__dict__.get("offset")
            self.key = (fqn, None if offset is None else counts(offset)) if isinstance(fqn, str) else None
        elif isinstance(state, tuple) and state:
            self.dtype = state[0]  # of TensorProperties

    @property
    def is_key(self) -> bool:
        """Whether it may be a key."""
        return self.key is not None

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Record) and self.key == other.key


def counts(values: Any) -> tuple[int, ...]:
    """Numbers of a shape or of a place in a file. Raises ValueError where they cannot be such."""
    if len(values) > pickles.FEW or not all(isinstance(one, int) and 0 <= one < pickles.NUMBER for one in values):
        raise ValueError("no numbers of a tensor")
    return tuple(values)


def dictionary() -> "OrderedDict[Any, Any]":
    """An empty one: a pickle adds the items. Given any, it would copy them, thousands of times for a few bytes."""
    return OrderedDict()


def _ignored(*_: object) -> None:
    """Takes the place of a function whose result is of no use here."""


_KNOWN: Mapping[tuple[str, str], Any] = {
    **{
        ("torch.distributed.checkpoint.metadata", name): _Record
        for name in (
            *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
            *("TensorProperties", "TensorStorageMetadata"),
        )
    },
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _Record,
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"): _ignored,
    ("builtins", "getattr"): _ignored,  # how some versions of Python write a member of an enumeration
    ("torch.serialization", "_get_layout"): _ignored,
    ("torch", "Size"): counts,
    ("collections", "OrderedDict"): dictionary,
    **{("pathlib", name): _ignored for name in ("Path", "PosixPath", "PurePosixPath")},
    **{("torch", name): name for name in DTYPES},
}


class _IndexUnpickler(pickles.Unpickler):
    """Knows the names in an index and no others: a checkpoint may come from anybody."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in an index") from None


def read(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a distributed checkpoint.

    Raises Problem where it has no index, the index is damaged or names a part that is not there in full.
    """
    path = folder / NAME
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > pickles.LARGEST:
                raise Problem(f"checkpoint {folder}: {NAME} is larger than {pickles.LARGEST >> 20} MiB")
            metadata = _IndexUnpickler(file).load()
        found = {name: one for name, one in metadata.state_dict_metadata.items() if hasattr(one, "chunks")}
        if sum(len(one.chunks) for one in found.values()) > len(metadata.storage_data):
            raise ValueError("its tensors have more parts than there are")  # by one list for all of them
        tensors = {name: _stored(name, one, metadata.storage_data) for name, one in found.items()}
    except OSError as error:
        raise Problem(f"checkpoint {folder}: {NAME}: {error.strerror or error}") from None
    except Problem:
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        raise Problem(f"checkpoint {folder}: {NAME} is damaged ({str(error)[:200] or type(error).__name__})") from None
    _check_files(folder, tensors)
    return tensors


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading: a pipe in its place would block for ever. Raises OSError."""
    # As runner.protocol.regular does, which is not in the zip of the job.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    raise OSError(errno.EINVAL, "this is no regular file", os.fspath(path))


def _stored(name: object, described: Any, storage: Any) -> StoredTensor:
    if not isinstance(name, str):
        raise ValueError("the name of a tensor is no text")
    name.encode()  # text that can be written
    parts = []
    for chunk in described.chunks:
        place = storage[_place_of(name, chunk.offsets)]
        file = place.relative_path
        if not isinstance(file, str):
            raise ValueError(f"a part of {name} has no file")
        if "/" in file or "\0" in file or file in ("", ".", ".."):
            raise Problem(f"a part of {name} lies outside, in {file[:200]!r}")
        if getattr(place, "transform_descriptors", None):
            raise Problem(f"a part of {name} is stored by an extension")
        begin, length = counts((place.offset, place.length))
        parts.append(StoredPart(counts(chunk.offsets), counts(chunk.sizes), file, begin, length))
    dtype = described.properties.dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{name} has no type")
    shape = counts(described.size)
    if math.prod(size or 1 for size in shape) >= pickles.NUMBER:
        raise ValueError(f"{name} is larger than any tensor")
    if any({len(part.offsets), len(part.sizes)} != {len(shape)} for part in parts):
        raise ValueError(f"a part of {name} has other dimensions")
    return StoredTensor(shape, dtype, tuple(parts))


def _place_of(name: str, offsets: object) -> _Record:
    record = _Record()
    record.__setstate__({"fqn": name, "offset": offsets})
    return record


def _check_files(folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
    ends: dict[str, int] = {}
    left = 0
    for stored in tensors.values():
        for part in stored.parts:
            ends[part.file] = max(ends.get(part.file, 0), part.begin + part.length)
            left -= part.length
    for name, end in sorted(ends.items()):
        try:
            size = (folder / name).stat().st_size
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise Problem(f"checkpoint {folder} is incomplete: {name}: {why}") from None
        left += MOST_SHARED * size
        if size < end:
            raise Problem(f"checkpoint {folder} is incomplete: {name} has {size:,} bytes of {end:,}")
    if left < 0:
        raise Problem(f"checkpoint {folder}: {NAME} is damaged (its tensors are larger than its files)")


class FileSlice(io.RawIOBase):
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
