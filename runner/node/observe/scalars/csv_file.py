"""Tables of metrics as Lightning's CSVLogger writes them: a head with names, a row for each step."""

from __future__ import annotations

import csv
from typing import List, Optional

from ..patterns import Record
from .sample import MalformedFileError, Sample, note, whole_step

_LONGEST = 16 << 10
"""Bytes of a line."""
_MOST_COLUMNS = 256
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
        if len(names) > _MOST_COLUMNS or not any(name.strip().lower() in _COUNTERS for name in names):
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
