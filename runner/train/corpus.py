"""The text: read on rank 0 only, cut into blocks, some of which are held out for validation."""

from __future__ import annotations

import hashlib
import os
import pkgutil
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch

from .problem import Problem, user_path

DATA_LIMIT = 256 * 2**20
"""Bytes of --data that are used: every rank holds a copy in memory."""
BUILTIN_SHA256 = "89ac0357012479660ddb22815a6374069002e38c7ccf312faa56e96c4d7c9b0b"
"""Hash of corpus.txt: the King James Version (1611), Matthew to Acts, in the public domain as its copyright expired.

Made with `bible -l100000 mat1:1-act28:31` of Debian's bible-kjv 4.38, without the first, empty line.
"""
HOLD_OUT = 20
"""One block in this many is used for validation."""


@dataclass(frozen=True)
class Text:
    """Bytes to learn from, and their name in messages."""

    data: bytes
    name: str
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes, as hex."""
        return hashlib.sha256(self.data).hexdigest()


def read_text(path: Optional[str]) -> Text:
    """The bytes of a file, of a folder's text files in sorted order, or (None) of the built-in corpus.

    Raises Problem if there is nothing to read.
    """
    if path is None:
        text = Text(pkgutil.get_data(__package__, "corpus.txt") or b"", "the built-in corpus")
        if text.digest != BUILTIN_SHA256:
            raise Problem("the built-in corpus is damaged: install disttui again, or give --data")
        return text
    place = user_path(path)
    try:
        if place.is_dir():
            return _gather(_text_files(place), str(place))
        with place.open("rb") as file:
            return _capped(file.read(DATA_LIMIT + 1), str(place), [])
    except OSError as error:
        raise Problem(f"--data {path}: {error.strerror}, on {platform.node()}, the host of rank 0") from None


def _gather(files: Iterable[Path], name: str) -> Text:
    parts, size, unreadable = [], 0, 0
    for file in files:
        if size > DATA_LIMIT:
            break
        try:
            content = file.read_bytes()
        except OSError:
            unreadable += 1
            continue
        if b"\0" not in content[:8192]:
            parts.append(content)
            size += len(content)
    lost = f"{unreadable} file{'s' * (unreadable > 1)}"
    notes = [f"left out of {name}: {lost} that cannot be read"] if unreadable else []
    return _capped(b"".join(parts), name, notes)


def _capped(data: bytes, name: str, notes: list[str]) -> Text:
    if len(data) > DATA_LIMIT:
        notes.append(f"the first {DATA_LIMIT >> 20} MiB of {name} are used")
    return Text(data[:DATA_LIMIT], name, tuple(notes))


def _text_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield path


class Corpus:
    """A text as blocks of `context` bytes, each with the byte that follows it.

    Args:
        data: The bytes as a uint8 tensor on the device that trains.
    """

    def __init__(self, data: Any, context: int) -> None:
        self._data = data
        self._context = context
        count = (len(data) - 1) // context
        self.train = [i for i in range(count) if i % HOLD_OUT != HOLD_OUT // 2]
        self.validation = [i for i in range(count) if i % HOLD_OUT == HOLD_OUT // 2]

    def batch(self, blocks: list[int]) -> tuple[Any, Any]:
        """Inputs and targets of some blocks, each of shape len(blocks) × context."""
        starts = torch.tensor(blocks, device=self._data.device) * self._context
        offsets = torch.arange(self._context + 1, device=self._data.device)
        tokens = self._data[starts[:, None] + offsets].long()
        return tokens[:, :-1], tokens[:, 1:]

    def require(self, global_batch: int, name: str) -> None:
        """Raise Problem if there are too few blocks for one step and one validation block."""
        if len(self.train) >= global_batch and self.validation:
            return
        if not len(self._data):
            raise Problem(f"{name} holds no text: name a text file, or a folder with some, by --data")
        raise Problem(
            f"{name} is too small: {len(self._data)} bytes make {len(self.train)} blocks of --context "
            f"{self._context} for training and {len(self.validation)} for validation; one step needs {global_batch} "
            f"and 1. Use more text, or a smaller context or batch"
        )
