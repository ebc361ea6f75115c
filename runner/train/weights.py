"""The weights of a checkpoint as one file: safetensors, or torch's own. Without torch, and with little memory.

Bytes are copied from file to file; of a checkpoint nothing is run, and no tensor is ever whole in memory.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from . import folder, index, pickles
from .problem import Problem

SUFFIXES = (".safetensors", ".pt")
_WEIGHT = "/weight"
"""What the name of a weight ends with in a checkpoint of this job, which has its moments beside it."""
_SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
_HEADER_ENTRY = "__metadata__"
"""What is no tensor in the header of a safetensors file."""
_MOST_WRITTEN = 100
"""How often the bytes of a file may be written: a layer that is used many times has a name for each."""
_CHUNK = 2**20
_ALIGNMENT = 8


@dataclass(frozen=True)
class ByteBox:
    """A box of a tensor whose bytes lie in a row."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: Path
    begin: int


@dataclass(frozen=True)
class Weight:
    """A tensor by the places of its bytes."""

    shape: tuple[int, ...]
    dtype: str
    blocks: tuple[ByteBox, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * index.DTYPES[self.dtype]


class ExportedWeights(NamedTuple):
    """What was written."""

    checkpoint: Path
    tensors: int
    parameters: int


def export(source: Path, to: Path) -> ExportedWeights:
    """Write the weights of a checkpoint, or of the newest one in a folder of some, as one file.

    Raises Problem where the checkpoint is incomplete or damaged, or the file cannot be written.
    """
    if to.suffix not in SUFFIXES:
        raise Problem(f"--to {to}: the name must end with {' or '.join(SUFFIXES)}")
    checkpoint = _choose(source)
    weights = dict(sorted(_open(checkpoint).items()))
    if _HEADER_ENTRY in weights and to.suffix == ".safetensors":
        raise Problem(f"--to {to}: safetensors has no tensor of the name {_HEADER_ENTRY}: write a .pt file")
    unfinished = to.with_name(to.name + ".tmp")
    try:
        _require_space(to, sum(weight.size for weight in weights.values()))
        with unfinished.open("wb") as file:
            _write_safetensors(file, weights) if to.suffix == ".safetensors" else _write_torch(file, weights)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(to)
    except OSError as error:
        raise Problem(f"{to}: {error.strerror or error}") from None
    finally:
        unfinished.unlink(missing_ok=True)
    parameters = sum(math.prod(weight.shape) for weight in weights.values())
    return ExportedWeights(checkpoint, len(weights), parameters)


def _require_space(to: Path, size: int) -> None:
    """Raise Problem where the disk has no room for so many bytes, OSError where there is no such folder."""
    disk = shutil.disk_usage(to.parent)
    if disk.total and size > disk.free:  # some network disks say 0
        raise Problem(f"{to}: the tensors are {size:,} bytes, and {disk.free:,} are free")


def _choose(source: Path) -> Path:
    if not source.exists():
        raise Problem(f"{source}: No such file or directory")
    if folder.is_one(source):
        return source
    for place in (source, source / "checkpoints"):
        if found := folder.saved(place):
            return found[0]
    raise Problem(f"{source} holds no checkpoint: neither step-….pt nor a folder step-…")


def _open(checkpoint: Path) -> dict[str, Weight]:
    """The weights of a checkpoint of either form; of one that is not this job's, all tensors."""
    if checkpoint.is_dir():
        stored = index.read(checkpoint)
        wanted = [name for name in stored if name.endswith(_WEIGHT)] or list(stored)
        return {_plain(name): _of_parts(checkpoint, name, stored[name]) for name in wanted}
    try:
        size = checkpoint.stat().st_size
    except OSError as error:
        raise Problem(f"checkpoint {checkpoint}: {error.strerror}") from None
    found = _Archive(checkpoint, 0, size, f"checkpoint {checkpoint}").tensors()
    wanted = [name for name in found if name.endswith(_WEIGHT)] or list(found)
    return {_plain(name): found[name] for name in wanted}


def _plain(name: str) -> str:
    return name[: -len(_WEIGHT)] if name.endswith(_WEIGHT) else name


def _of_parts(checkpoint: Path, name: str, stored: index.StoredTensor) -> Weight:
    blocks = []
    for part in stored.parts:
        where = f"checkpoint {checkpoint}: {name} in {part.file}"
        held = [*_Archive(checkpoint / part.file, part.begin, part.length, where).tensors().values()]
        if [(only.shape, only.dtype) for only in held] != [(part.sizes, stored.dtype)]:
            raise Problem(f"{where} has another shape or type than {index.NAME} says")
        (only,) = held
        blocks.append(ByteBox(part.offsets, part.sizes, only.blocks[0].path, only.blocks[0].begin))
    return Weight(stored.shape, stored.dtype, tuple(blocks))


class _Stored(tuple[str, str]):
    """A storage of an archive: its type and its record's name."""

    __slots__ = ()


class _TensorUnpickler(pickles.Unpickler):
    """Reads what torch.save makes of tensors, as tuples of storage, offset, shape and strides; knows nothing else."""

    def persistent_load(self, pid: Any) -> _Stored:
        _, kind, record, *_ = pid
        if not (isinstance(kind, str) and isinstance(record, str)):
            raise pickle.UnpicklingError("a tensor has no storage")
        return _Stored((kind, record))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Array
        if (module, name) == ("collections", "OrderedDict"):
            return index.dictionary
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is no tensor")


class _Array:
    """A tensor as its pickle describes it."""

    def __init__(self, storage: _Stored, offset: int, shape: Sequence[int], strides: Sequence[int], *_: object) -> None:
        if not isinstance(storage, _Stored):
            raise pickle.UnpicklingError("a tensor has no storage")
        self.dtype, self.record = storage
        (self.offset,) = index.counts((offset,))
        self.shape = index.counts(shape)
        self.strides = index.counts(strides)


class _Archive:
    """A file that torch.save wrote, or such a part of a file. Raises Problem where it is damaged."""

    def __init__(self, path: Path, begin: int, length: int, where: str) -> None:
        self._path = path
        self._begin = begin
        self._length = length
        self._where = where

    def tensors(self) -> dict[str, Weight]:
        """Its tensors by name; one without a name is called "". All bytes are compared with their checksums."""
        try:
            with (
                index.open_regular(self._path) as file,
                zipfile.ZipFile(index.FileSlice(file, self._begin, self._length)) as zipped,
            ):
                _refuse_bomb(zipped, self._length)
                if damaged := zipped.testzip():
                    raise Problem(f"{self._where} is damaged (at {damaged})")
                found = self._read(file, zipped)
                size = sum(weight.size for weight in found.values())
                if size > _MOST_WRITTEN * self._length:
                    shared = f"{len(found):,} tensors share their bytes, and would be {size:,} as a file"
                    raise Problem(f"{self._where}: {shared}, more than {_MOST_WRITTEN} times this one")
                return found
        except OSError as error:
            raise Problem(f"{self._where}: {error.strerror or error}") from None
        except Problem:
            raise
        except Exception as error:  # whatever damaged bytes lead to
            why = str(error)[:200] or type(error).__name__
            raise Problem(f"{self._where} is incomplete or damaged ({why})") from None

    def _read(self, file: BinaryIO, zipped: zipfile.ZipFile) -> dict[str, Weight]:
        (name,) = (one for one in zipped.namelist() if one.endswith("/data.pkl"))
        root = name[: -len("data.pkl")]
        if f"{root}byteorder" in zipped.namelist() and zipped.read(f"{root}byteorder") != b"little":
            raise ValueError("its bytes are in the order of another machine")
        if zipped.getinfo(name).file_size > pickles.LARGEST:
            raise ValueError(f"what it says of its tensors is larger than {pickles.LARGEST >> 20} MiB")
        with zipped.open(name) as pickled:
            content = _TensorUnpickler(pickled).load()
        if isinstance(content, dict):
            content = content.get("tensors", content)
        arrays = content if isinstance(content, dict) else {"": content}
        return {
            str(key).encode().decode(): self._weight(file, zipped, root, array)  # text that can be written
            for key, array in arrays.items()
            if isinstance(array, _Array)
        }

    def _weight(self, file: BinaryIO, zipped: zipfile.ZipFile, root: str, array: _Array) -> Weight:
        info = zipped.getinfo(f"{root}data/{array.record}")
        file.seek(self._begin + info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        width = index.DTYPES[array.dtype]
        begin = self._begin + info.header_offset + 30 + name + extra + array.offset * width
        strides = tuple(math.prod(array.shape[dimension + 1 :]) for dimension in range(len(array.shape)))
        dense = all(ours == theirs or size == 1 for ours, theirs, size in zip(strides, array.strides, array.shape))  # noqa: B905
        fits = (array.offset + math.prod(array.shape)) * width <= info.file_size and min(
            (array.offset, *array.shape)
        ) >= 0
        if not (dense and fits):
            raise ValueError("a tensor's bytes do not lie in a row")
        block = ByteBox((0,) * len(array.shape), array.shape, self._path, begin)
        return Weight(array.shape, array.dtype, (block,))


def _refuse_bomb(zipped: zipfile.ZipFile, length: int) -> None:
    """Raise ValueError for an archive with more in it than its own bytes: torch.save compresses nothing."""
    records = zipped.infolist()
    packed = any(one.compress_type != zipfile.ZIP_STORED for one in records)
    if packed or sum(one.file_size for one in records) > length:
        raise ValueError("its records are compressed, or overlap")


def _write_safetensors(file: BinaryIO, weights: Mapping[str, Weight]) -> None:
    """A length of 8 bytes, a JSON header, and the bytes of all tensors one after the other."""
    header: dict[str, object] = {_HEADER_ENTRY: {"format": "pt"}}
    at = 0
    for name, weight in weights.items():
        place = {"dtype": _SAFETENSORS[weight.dtype], "shape": weight.shape, "data_offsets": (at, at + weight.size)}
        header[name] = place
        at += weight.size
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    file.write(struct.pack("<Q", len(text)) + text)
    for name, weight in weights.items():
        _copy(name, weight, file)


def _write_torch(file: BinaryIO, weights: Mapping[str, Weight]) -> None:
    """What torch.save makes of a dictionary of tensors."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as zipped:
        zipped.writestr("archive/data.pkl", _pickled(weights))
        zipped.writestr("archive/byteorder", "little")
        for number, (name, weight) in enumerate(weights.items()):
            with zipped.open(f"archive/data/{number}", "w", force_zip64=True) as record:
                _copy(name, weight, record)
        zipped.writestr("archive/version", "3\n")


def _pickled(weights: Mapping[str, Weight]) -> bytes:
    """The pickle of the dictionary, put together by hand: its classes are torch's."""
    storages = {dtype: name for name, dtype in _STORAGES.items()}
    parts = [b"\x80\x02}("]
    for number, (name, weight) in enumerate(weights.items()):
        strides = [math.prod(weight.shape[dimension + 1 :]) for dimension in range(len(weight.shape))]
        storage = b"ctorch\n" + storages[weight.dtype].encode() + b"\n"
        parts += [
            _text(name), b"ctorch._utils\n_rebuild_tensor_v2\n((", _text("storage"), storage, _text(str(number)),
            _text("cpu"), _number(math.prod(weight.shape)), b"tQ",
            _number(0), _numbers(weight.shape), _numbers(strides),
            b"\x89ccollections\nOrderedDict\n)RtR",
        ]  # fmt: skip
    return b"".join([*parts, b"u."])


def _text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _number(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little")


def _numbers(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_number, values)) + b"t"


def _copy(name: str, weight: Weight, to: Any) -> None:
    """Write the tensor's bytes in order. Raises Problem where a part is missing, OSError where the disk is full."""
    if not weight.size:
        return  # a shape such as (10 ** 18, 0) has no bytes, and many rows
    files: dict[Path, BinaryIO] = {}
    with ExitStack() as opened:
        for block, begin, length in _runs(name, weight, ()):
            if block.path not in files:
                files[block.path] = opened.enter_context(index.open_regular(block.path))
            file = files[block.path]
            file.seek(begin)
            end = begin + length
            while (at := file.tell()) < end:
                data = file.read(min(end - at, _CHUNK))
                if not data:
                    raise Problem(f"{block.path} became shorter while it was read")
                to.write(data)


def _runs(name: str, weight: Weight, at: tuple[int, ...]) -> Iterator[tuple[ByteBox, int, int]]:
    """The pieces that make up the tensor below the indices `at`, in order: block, first byte in its file, bytes."""
    dimension = len(at)
    here = [
        block
        for block in weight.blocks
        if all(low <= one < low + size for one, low, size in zip(at, block.offsets, block.sizes))  # noqa: B905
    ]
    if dimension == len(weight.shape):
        if not here:
            raise Problem(f"a part of {name} is missing")
        yield here[0], *_span(weight, here[0], at, 1)
        return
    position = 0
    while position < weight.shape[dimension]:
        over = [
            block
            for block in here
            if block.offsets[dimension] <= position < block.offsets[dimension] + block.sizes[dimension]
        ]
        if not over:
            raise Problem(f"a part of {name} is missing")
        whole = [block for block in over if block.sizes[dimension + 1 :] == weight.shape[dimension + 1 :]]
        if whole:
            end = whole[0].offsets[dimension] + whole[0].sizes[dimension]
            yield whole[0], *_span(weight, whole[0], (*at, position), end - position)
            position = end
        else:
            yield from _runs(name, weight, (*at, position))
            position += 1


def _span(weight: Weight, block: ByteBox, at: tuple[int, ...], count: int) -> tuple[int, int]:
    """First byte in the block's file, and bytes, of `count` entries from the indices `at` on."""
    width = index.DTYPES[weight.dtype]
    element = 0
    for dimension, one in enumerate(at):
        element += (one - block.offsets[dimension]) * math.prod(block.sizes[dimension + 1 :])
    return block.begin + element * width, count * math.prod(block.sizes[len(at) :]) * width
