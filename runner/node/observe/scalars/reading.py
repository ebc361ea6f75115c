"""One file of metrics, read by offset as it grows, and the tables that Lightning's CSVLogger writes."""

from __future__ import annotations

import csv
import os
import stat
from typing import List, Optional, Union

from ..patterns import Record
from .event_file import EventFile
from .sample import MalformedFileError, Sample, as_validation, note, of_validation, together, whole_step
from .wandb_file import WandbFile

EVENTS = "events.out.tfevents."
"""What event files' names begin with."""
_PIECE = 64 << 10
"""Bytes per read: more than the longest record of any format."""


def decoder(path: str) -> Optional[Union[EventFile, WandbFile, CsvFile]]:
    """The decoder for a file of this name, None for other files."""
    name = os.path.basename(path)
    if name.startswith(EVENTS):
        return EventFile()
    if name.endswith(".wandb"):
        return WandbFile()
    return CsvFile() if name.endswith(".csv") else None


class ScalarFile:
    """A file of metrics that is open.

    Args:
        path: The path to open; it may be a descriptor's path below /proc.
        name: The file's name, which tells its format.

    Raises:
        OSError: It cannot be opened.
        MalformedFileError: It is no file of metrics.
    """

    def __init__(self, path: str, name: str) -> None:
        found = decoder(name)
        if found is None:
            raise MalformedFileError("an unknown kind of file")
        self.name = name
        self._decoder = found
        self.is_of_metrics = not isinstance(found, CsvFile)
        """Whether its format is confirmed: a table may hold anything."""
        self._path = path
        self._offset = 0
        self._damage: Optional[MalformedFileError] = None
        self._validation = of_validation(os.path.dirname(name))
        # Opening a FIFO in its place must not block.
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        seen = os.fstat(self._fd)
        self.key = (seen.st_dev, seen.st_ino)
        if not stat.S_ISREG(seen.st_mode):
            self.close()
            raise MalformedFileError("not a regular file")

    def read(self, budget: int) -> List[Sample]:
        """Return the new samples, of about `budget` bytes at most. Raises MalformedFileError or OSError.

        Damage is raised by the call after the one that has returned the samples before it.
        """
        if self._damage:
            raise self._damage
        samples: List[Sample] = []
        table = self._decoder if isinstance(self._decoder, CsvFile) else None
        size = os.fstat(self._fd).st_size
        if table and (size < self._offset or os.pread(self._fd, len(table.head), 0) != table.head):
            table.begin_anew()
            self._offset = 0
        while budget > 0:
            piece = os.pread(self._fd, _PIECE, self._offset)
            try:
                consumed = self._decoder.take(piece, self._offset, samples) if piece else 0
            except MalformedFileError as error:
                if not samples:
                    raise
                self._damage, consumed = error, 0
            if not consumed:
                break
            self._offset += consumed
            budget -= min(consumed, len(piece))
        samples = together(samples)
        self.is_of_metrics = self.is_of_metrics or bool(samples)
        return [as_validation(sample) for sample in samples] if self._validation else samples

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_LONGEST = 16 << 10
"""Bytes of a line."""
_COUNTERS = ("step", "global_step", "iter", "iteration", "epoch")


class CsvFile:
    """Reads one table piece by piece.

    On a new name the writer writes the whole file anew; rows that were read before are left out then.
    """

    def __init__(self) -> None:
        self.head = b""
        """The line with the names, empty until it is read."""
        self._names: List[str] = []
        self._row = 0
        self._taken = 0

    def begin_anew(self) -> None:
        """The file was written anew: what follows is read from its beginning."""
        self.head, self._row = b"", 0

    def take(self, piece: bytes, offset: int, samples: List[Sample]) -> int:
        """Parse the piece at `offset`; its samples are appended to `samples`.

        Returns the bytes consumed, more than the piece has where the following bytes are to be skipped. Raises
        MalformedFileError.
        """
        end = piece.rfind(b"\n") + 1
        if not end:
            if len(piece) > _LONGEST:
                raise MalformedFileError("a line of more than %d bytes" % _LONGEST)
            return 0
        for line in piece[:end].splitlines(keepends=True):
            if not self.head:
                self._begin(line)
                continue
            self._row += 1
            if self._row <= self._taken:
                continue
            self._taken = self._row
            sample = self._read(line)
            if sample is not None:
                samples.append(sample)
        return end

    def _begin(self, line: bytes) -> None:
        names = _cells(line)
        if len(names) > 256 or not any(name.strip().lower() in _COUNTERS for name in names):
            raise MalformedFileError("no column for a step or an epoch")
        self.head, self._names = line, [name.strip() for name in names]

    def _read(self, line: bytes) -> Optional[Sample]:
        values: Record = {}
        for name, cell in zip(self._names, _cells(line)):  # noqa: B905 (Python 3.8)
            if cell.strip():
                note(values, name, cell.strip())
        step = values.pop("step", None)
        return Sample(whole_step(step), None, values) if values.keys() - {"epoch"} else None


def _cells(line: bytes) -> List[str]:
    if len(line) > _LONGEST:
        raise MalformedFileError("a line of more than %d bytes" % _LONGEST)
    try:
        return next(csv.reader([line.decode("utf-8", "replace").replace("\0", "")]), [])
    except csv.Error as error:
        raise MalformedFileError(str(error)) from None
