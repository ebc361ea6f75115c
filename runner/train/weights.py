"""Exports the weights of a checkpoint as one file, safetensors or torch's own, without torch and with little memory.

Bytes are copied from file to file; nothing in a checkpoint is executed, and no tensor is ever whole in memory.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from . import index
from .index import StoredPart, StoredTensor
from .problem import Problem

SUFFIXES = (".safetensors", ".pt")
_WEIGHT = "/weight"
"""The end of a weight's name in a checkpoint of this job, which stores its moments next to it."""
_SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_STORAGES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int",
    "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool",
}  # fmt: skip
_HEADER_ENTRY = "__metadata__"
"""The entry in the header of a safetensors file that is not a tensor."""
_ALIGNMENT = 8


class ExportedWeights(NamedTuple):
    """What was exported: the checkpoint, and how many tensors and parameters it has."""

    checkpoint: Path
    tensors: int
    parameters: int


def export(source: Path, to: Path) -> ExportedWeights:
    """Write the weights of a checkpoint, or of the newest one in a folder, as one file.

    Raises Problem if the checkpoint is incomplete or damaged, or the file cannot be written.
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
    """Raise Problem if the disk has no room for that many bytes, OSError if there is no such folder."""
    disk = shutil.disk_usage(to.parent)
    if disk.total and size > disk.free:  # some network disks report 0
        raise Problem(f"{to}: the tensors are {size:,} bytes, and {disk.free:,} are free")


def _choose(source: Path) -> Path:
    if not source.exists():
        raise Problem(f"{source}: No such file or directory")
    if index.is_one(source):
        return source
    for place in (source, source / "checkpoints"):
        if found := index.saved(place):
            return found[0]
    raise Problem(f"{source} holds no checkpoint: no folder step-…")


def _open(checkpoint: Path) -> dict[str, StoredTensor]:
    """The weights of a checkpoint by their names in the model; all bytes are compared with their checksums."""
    found = {name: stored for name, stored in index.read(checkpoint)[1].items() if name.endswith(_WEIGHT)}
    for name, stored in found.items():
        for part in stored.parts:
            for _ in part.pieces(f"checkpoint {checkpoint}: {name} in {part.path.name}"):
                pass
    return {name[: -len(_WEIGHT)]: stored for name, stored in found.items()}


def _write_safetensors(file: BinaryIO, weights: Mapping[str, StoredTensor]) -> None:
    """Write a length of 8 bytes, a JSON header, and the bytes of all tensors one after the other."""
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


def _write_torch(file: BinaryIO, weights: Mapping[str, StoredTensor]) -> None:
    """Write what torch.save makes of a dictionary of tensors."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as zipped:
        zipped.writestr("archive/data.pkl", _pickled(weights))
        zipped.writestr("archive/byteorder", "little")
        for number, (name, weight) in enumerate(weights.items()):
            with zipped.open(f"archive/data/{number}", "w", force_zip64=True) as record:
                _copy(name, weight, record)
        zipped.writestr("archive/version", "3\n")


def _pickled(weights: Mapping[str, StoredTensor]) -> bytes:
    """The pickle of the dictionary, written by hand: its classes are torch's."""
    parts = [b"\x80\x02}("]
    for number, (name, weight) in enumerate(weights.items()):
        strides = [math.prod(weight.shape[dimension + 1 :]) for dimension in range(len(weight.shape))]
        storage = b"ctorch\n" + _STORAGES[weight.dtype].encode() + b"Storage\n"
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


def _copy(name: str, weight: StoredTensor, to: Any) -> None:
    """Write the tensor's bytes in order. Raises Problem if a part is missing, OSError if the disk is full."""
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
                data = file.read(min(end - at, (2**20)))
                if not data:
                    raise Problem(f"{block.path} became shorter while it was read")
                to.write(data)


def _runs(name: str, weight: StoredTensor, at: tuple[int, ...]) -> Iterator[tuple[StoredPart, int, int]]:
    """The pieces that make up the tensor below the indices `at`, in order: block, first byte in its file, bytes."""
    dimension = len(at)
    here = [
        block
        for block in weight.parts
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


def _span(weight: StoredTensor, block: StoredPart, at: tuple[int, ...], count: int) -> tuple[int, int]:
    """First byte in the block's file, and number of bytes, of `count` entries from the indices `at` on."""
    width = index.DTYPES[weight.dtype]
    element = 0
    for dimension, one in enumerate(at):
        element += (one - block.offsets[dimension]) * math.prod(block.sizes[dimension + 1 :])
    return block.begin + element * width, count * math.prod(block.sizes[len(at) :]) * width
