"""Reads a pickle that may come from anybody: it calls what a subclass knows, and takes no time without end.

A tuple can hold another one twice, which holds another one twice …: some hundred bytes whose hash, as of a key, takes
longer than anybody lives. Nothing in the unpickler of C can be asked about keys, so that this is the one in Python.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

LARGEST = 2**30
"""Bytes of a pickle."""
FEW, NUMBER = 64, 2**63
"""The most dimensions of a tensor, as in torch, and fields of a record; one more than the largest number of a shape."""
_REFUSED = (
    pickle.DUP, pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER, pickle.INST, pickle.OBJ, pickle.DICT,
    pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID, pickle.INT, pickle.LONG, pickle.FLOAT, pickle.STRING,
    pickle.UNICODE,
)  # fmt: skip
"""Of protocols before 2, or never written; some would take memory that the file has no bytes for."""


def _plain(value: object) -> bool:
    """Whether a hash of it takes no time."""
    if isinstance(value, int):
        return -NUMBER <= value < NUMBER
    return value is None or isinstance(value, (str, bytes, float)) or getattr(value, "is_key", False) is True


def _require_keys(values: Iterable[object]) -> None:
    for one in values:
        if not _plain(one) and not (isinstance(one, tuple) and len(one) <= FEW and all(map(_plain, one))):
            raise pickle.UnpicklingError("a key is no text, number or short list of such")


def _refuse(_: Any) -> None:
    raise pickle.UnpicklingError("it has an instruction that has no place in a checkpoint")


def _set_item(reader: Any) -> None:
    _require_keys(reader.stack[-2:-1])
    _READ[pickle.SETITEM[0]](reader)


def _keyed(operation: bytes, step: int) -> Callable[[Any], None]:
    """What checks the keys among the values that an instruction takes, and carries it out."""

    def carry_out(reader: Any) -> None:
        _require_keys(reader.stack[::step])
        _READ[operation[0]](reader)

    return carry_out


_READ: Mapping[int, Callable[[Any], None]] = pickle._Unpickler.dispatch


class Unpickler(pickle._Unpickler):
    """Knows no class or function: a subclass names those in `find_class`, with `is_key` for records that are keys."""

    dispatch: ClassVar[dict[int, Any]] = {
        **_READ,
        **{operation[0]: _refuse for operation in _REFUSED},
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _keyed(pickle.SETITEMS, 2),
        pickle.ADDITEMS[0]: _keyed(pickle.ADDITEMS, 1),
        pickle.FROZENSET[0]: _keyed(pickle.FROZENSET, 1),
    }

    def load(self) -> Any:
        """Read it. Garbage is not collected meanwhile: that looks at all parts read so far, again and again."""
        collects = gc.isenabled()
        gc.disable()
        try:
            return super().load()
        finally:
            if collects:
                gc.enable()
