"""`disttui metrics --try`: what the hosts of a run would read from a log or a file of metrics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from runner.errors import InputError
from runner.formatting import amount
from runner.node.observe.harvest import Reader
from runner.node.observe.patterns import LONGEST, Record
from runner.node.observe.recogniser import Recogniser
from runner.node.observe.scalars.reading import ScalarFile, decoder
from runner.node.observe.scalars.sample import MalformedError
from runner.text import clean

_PIECE = 1 << 20
"""Bytes of a file without ends of lines that are read at once."""
_SHOWN = 20
"""Lines with metrics that are shown one by one, as text."""


def try_log(path: Path, pattern: str | None, say: Callable[[str], None], *, as_json: bool = False) -> int:
    """Show the metrics in a log's lines, or in a file for TensorBoard, wandb or of a table.

    Returns 0, or 1 where there are none.

    Raises:
        InputError: The file cannot be read or is damaged, or the expression is none.
    """
    source = _File(path, pattern) if decoder(path.name) else _Log(path, pattern)
    telling, names = 0, Counter[str]()
    try:
        for number, record in source.records():
            telling += 1
            names.update(record.keys())
            if as_json:
                say(json.dumps({source.unit: number, "record": record}))
            elif telling <= _SHOWN:
                say(f"{number:>7}  " + ", ".join(f"{clean(name)} {value}" for name, value in record.items()))
    except OSError as error:
        raise InputError(f"{error.strerror}", place=f"{path}") from None
    except MalformedError as error:
        cure = f"{amount(telling, source.unit)} before that can be read."
        raise InputError(str(error), cure, place=f"{path}") from None
    if not as_json:
        if telling > _SHOWN:
            say(f"    …    and {amount(telling - _SHOWN, source.unit)} more")
        for note in source.notes:
            say(note)
        of = f" of {source.count:,}" if source.count is not None else ""
        say(f"{amount(telling, source.unit)}{of} hold metrics" + (f": {_most(names)}" if names else "."))
        if not telling:
            say(source.advice)
    return 0 if telling else 1


class _Log:
    """What ranks have printed."""

    unit = "line"
    advice = "Give --pattern an expression whose named groups are metrics, such as 'step=(?P<step>\\d+)'."

    def __init__(self, path: Path, pattern: str | None) -> None:
        self._path = path
        self._reader = Reader(pattern)
        if self._reader.notes:
            what = self._reader.notes[0].replace("metrics.pattern", "--pattern")
            raise InputError(what, "See Python's re module.")
        self.notes = self._reader.notes
        self.count: int | None = 0
        """Lines so far."""

    def records(self) -> Iterator[tuple[int, Record]]:
        """The number of each line that holds metrics, and what it holds."""
        known = Recogniser()
        with self._path.open("rb") as file:
            for number, line in _lines(file):
                self.count = (self.count or 0) + 1
                for record in self._reader.read([line], known, 1):
                    yield number, record


class _File:
    """A file of metrics."""

    unit = "sample"
    advice = "Nothing in it is a number with a name and a step."
    notes: Sequence[str] = ()
    count: int | None = None

    def __init__(self, path: Path, pattern: str | None) -> None:
        if pattern is not None:
            raise InputError(f"{path.name} is no log: no --pattern is used for it", "Leave it out.")
        self._path = path

    def records(self) -> Iterator[tuple[int, Record]]:
        """Each sample with its number. Raises MalformedError."""
        file = ScalarFile(str(self._path), str(self._path.absolute()))
        number = 0
        try:
            size = self._path.stat().st_size
            while samples := file.read(size + 1):
                for sample in samples:
                    number += 1
                    yield number, sample.record()
        finally:
            file.close()


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a log, numbered from 1; every state of a bar that is redrawn in place counts as a line."""
    number = 0
    while data := file.readline(_PIECE):
        number += 1
        for line in data.rstrip(b"\n").split(b"\r"):
            if 0 < len(line) <= LONGEST:
                yield number, line


def _most(names: Counter[str]) -> str:
    return ", ".join(f"{clean(name)} ({times:,})" for name, times in names.most_common(20))
