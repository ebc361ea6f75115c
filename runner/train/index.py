"""A checkpoint on disk: the numbers of all tensors in one file per rank, and an index of their locations.

It is read without torch. A checkpoint may be untrusted, so its index is bounded and checked before it is used.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypedDict, Union

from .problem import Problem

NAME = "bytegpt.json"
FORMAT = 3
"""The version of an index, and of the meaning of tensors with the same names."""
DTYPES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip
"""Types of numbers, with their sizes in bytes."""
_LARGEST = 2**28
"""Largest index in bytes."""
_FILE = re.compile(r"rank-\d{1,9}\.bin")
_PIECE = 2**20


class SavedProgress(TypedDict):
    """The content of a checkpoint besides its tensors."""

    step: int
    samples: int
    recipe: Mapping[str, Union[int, float, str]]
    scaling: Mapping[str, float]
    """The state of LossScale; empty unless training in fp16."""
    token: str
    """Random, new at each save: another host may have another run's checkpoint with the same name."""


@dataclass(frozen=True)
class StoredPart:
    """A box of a tensor, and the location of its bytes, row by row."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: Path
    begin: int
    length: int
    crc: int

    def pieces(self, where: str) -> Iterator[bytes]:
        """Yield its bytes in pieces. Raises Problem if they are not those that were written."""
        crc, left = 0, self.length
        try:
            with open_regular(self.path) as file:
                file.seek(self.begin)
                while left and (data := file.read(min(left, _PIECE))):
                    crc, left = zlib.crc32(data, crc), left - len(data)
                    yield data
        except OSError as error:
            raise Problem(f"{where}: {error.strerror or error}") from None
        if left or crc != self.crc:
            raise Problem(f"{where} is damaged")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint, which consists of all its parts."""

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[StoredPart, ...]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype]


def read(folder: Path) -> tuple[SavedProgress, dict[str, StoredTensor]]:
    """The progress in a checkpoint, and its tensors.

    Raises Problem if it has no index, the index is damaged or of another version, or a file is missing or too short.
    """
    what = f"checkpoint {folder}: {NAME}"
    try:
        with open_regular(folder / NAME) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _LARGEST:
                raise Problem(f"{what} is larger than {_LARGEST >> 20} MiB")
            found = json.loads(file.read(size))
        if found["format"] != FORMAT:
            raise Problem(f"checkpoint {folder} was written by another version of bytegpt")
        tensors = {_text(name): _stored(folder, one) for name, one in found["tensors"].items()}
        progress = _progress(found)
    except FileNotFoundError:
        raise Problem(f"{folder} is not a checkpoint of bytegpt: it has no {NAME}") from None
    except OSError as error:
        raise Problem(f"{what}: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Problem(f"{what} is damaged ({str(error)[:200] or type(error).__name__})") from None
    _check_files(folder, tensors)
    return progress, tensors


def _progress(found: Mapping[str, Any]) -> SavedProgress:
    recipe, scaling = dict(found["recipe"]), dict(found["scaling"])
    if not all(isinstance(one, (int, float)) for one in scaling.values()):
        raise ValueError("a scaling is not a number")
    step, samples = _counts((found["step"], found["samples"]))
    return {"step": step, "samples": samples, "recipe": recipe, "scaling": scaling, "token": _text(found["token"])}


def _stored(folder: Path, found: Mapping[str, Any]) -> StoredTensor:
    shape, dtype = _counts(found["shape"]), _text(found["dtype"])
    parts = []
    for file, begin, crc, *box in found["parts"]:
        offsets, sizes = map(_counts, box)
        if {len(offsets), len(sizes)} != {len(shape)} or not all(sizes):
            raise ValueError("a part has other dimensions than its tensor")
        if not _FILE.fullmatch(file):
            raise ValueError(f"a part lies in {file[:200]!r}")
        (at,) = _counts((begin,))
        parts.append(StoredPart(offsets, sizes, folder / file, at, math.prod(sizes) * DTYPES[dtype], crc))
    if sum(math.prod(part.sizes) for part in parts) != math.prod(shape):
        raise ValueError("the parts of a tensor are not the whole")
    if math.prod(size or 1 for size in shape) >= 2**63:
        raise ValueError("a tensor is larger than any")
    return StoredTensor(shape, dtype, tuple(parts))


def _text(value: Any) -> str:
    """A text that can be encoded. Raises TypeError, ValueError."""
    return str(bytes(value, "utf-8"), "utf-8")


def _counts(values: Any) -> tuple[int, ...]:
    """Numbers of a shape, or of a position in a file. Raises ValueError if they cannot be that."""
    if len(values) > 64 or not all(type(one) is int and 0 <= one < 2**63 for one in values):
        raise ValueError("not the sizes of a tensor")
    return tuple(values)


def _check_files(folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
    ends: dict[Path, int] = {}
    left = 0
    for stored in tensors.values():
        for part in stored.parts:
            ends[part.path] = max(ends.get(part.path, 0), part.begin + part.length)
            left -= part.length
    for path, end in sorted(ends.items()):
        try:
            size = path.stat().st_size
        except OSError as error:
            raise Problem(f"checkpoint {folder} is incomplete: {path.name}: {error.strerror}") from None
        left += size
        if size < end:
            raise Problem(f"checkpoint {folder} is incomplete: {path.name} has {size:,} bytes of {end:,}")
    if left < 0:
        raise Problem(f"checkpoint {folder}: {NAME} is damaged (its tensors are larger than its files)")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading: a pipe in its place would block forever. Raises OSError."""
    # Like disttui.runner.protocol.regular, which is not in the job's zip.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


CHECKPOINT_NAME = re.compile(r"step-(\d+)-a(\d+)(\.tmp)?")
"""Step and attempt; with .tmp while it is being written."""


def saved(folder: Path) -> list[Path]:
    """The checkpoints in a folder, best for a resume first: the newest attempt's, and of these the last step's.

    The attempt comes first because a disconnected host may still write steps of an attempt that was given up.
    """
    found = [
        (match, path)
        for path in folder.glob("step-*")
        if (match := CHECKPOINT_NAME.fullmatch(path.name)) and not match[3]
    ]
    found.sort(key=lambda item: (int(item[0][2]), int(item[0][1])), reverse=True)
    return [path for _, path in found]


def is_one(path: Path) -> bool:
    """Whether a path is a checkpoint itself, not a folder of checkpoints."""
    return not path.is_dir() or (path / NAME).exists() or CHECKPOINT_NAME.fullmatch(path.name) is not None
