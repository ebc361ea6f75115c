"""The metrics that the hosts of a run would read from a log or a file of metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import BinaryIO

from runner.errors import InputError
from runner.formatting import amount
from runner.node.observe.harvest import Reader
from runner.node.observe.patterns import LONGEST, Record
from runner.node.observe.recogniser import Recogniser
from runner.node.observe.scalars.reading import ScalarFile, decoder
from runner.node.observe.scalars.sample import MalformedFileError
from runner.private import open_named

_PIECE = 1 << 20
"""Bytes per read of a file without newlines."""


class LogTrial:
    """The metrics in a log's lines, or in a file for TensorBoard, wandb or of a table.

    Iterate for (number of the line or sample, from 1, and its metrics); the totals are complete after that.

    Attributes:
        unit: What is counted: `line` or `sample`.
        matched: How many of them contain metrics.
        names: How often each metric was found.

    Raises:
        InputError: The expression is invalid; while iterating: the file cannot be read or is damaged.
    """

    def __init__(self, path: Path, pattern: str | None = None) -> None:
        self.matched = 0
        self.names: Counter[str] = Counter()
        self._path = path
        self._source = _MetricsFile(path, pattern) if decoder(path.name) else _Log(path, pattern)
        self.unit = self._source.unit

    @property
    def count(self) -> int | None:
        """How many were read; None: only the number with metrics is known."""
        return self._source.count

    @property
    def notes(self) -> Sequence[str]:
        """Notes about the reading."""
        return self._source.notes

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        try:
            for number, record in self._source.records():
                self.matched += 1
                self.names.update(record.keys())
                yield number, record
        except OSError as error:
            raise InputError(f"{error.strerror}", place=f"{self._path}") from None
        except MalformedFileError as error:
            cure = f"{amount(self.matched, self.unit)} before that can be read."
            raise InputError(str(error), cure, place=f"{self._path}") from None


class _Log:
    """A log of ranks."""

    unit = "line"

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
        """The number of each line with metrics, and the metrics."""
        known = Recogniser()
        with open_named(self._path) as file:
            for (number, line), (_, following) in pairwise(chain(_lines(file), [(0, b"")])):
                self.count = (self.count or 0) + 1
                for record in self._reader.read([line], known, 1, following):
                    yield number, record


class _MetricsFile:
    """A file of metrics."""

    unit = "sample"
    notes: Sequence[str] = ()
    count: int | None = None

    def __init__(self, path: Path, pattern: str | None) -> None:
        if pattern is not None:
            raise InputError(f"{path.name} is no log: no --pattern is used for it", "Leave it out.")
        self._path = path

    def records(self) -> Iterator[tuple[int, Record]]:
        """Each sample with its number. Raises MalformedFileError."""
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
