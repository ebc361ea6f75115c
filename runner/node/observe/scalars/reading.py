"""One file of metrics, read by offset as it grows."""

from __future__ import annotations

import os
import stat
from typing import List, Optional, Union

from .csv_file import CsvFile
from .event_file import EventFile
from .sample import MalformedFileError, Sample, as_validation, of_validation, together
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
            raise MalformedFileError("a name of no known kind")
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
            raise MalformedFileError("no regular file")

    def read(self, budget: int) -> List[Sample]:
        """Return the new samples, of about `budget` bytes at most. Raises MalformedFileError or OSError.

        Damage is raised by the call after the one that has returned the samples before it.
        """
        if self._damage:
            raise self._damage
        samples: List[Sample] = []
        if isinstance(self._decoder, CsvFile):
            self._look_again(self._decoder)
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

    def _look_again(self, table: CsvFile) -> None:
        size = os.fstat(self._fd).st_size
        if size < self._offset or os.pread(self._fd, len(table.head), 0) != table.head:
            table.begin_anew()
            self._offset = 0

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
