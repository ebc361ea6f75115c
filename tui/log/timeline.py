"""When the bytes of a log came, from the sizes that the supervisor recorded (docs/formats.md, growth.jsonl)."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

from runner.protocol.regular import open_regular

STEP = 0.25
"""Seconds between two records of a growing file."""


class Timeline:
    """Sizes of one log over time. Times are unix seconds, sizes bytes of the local file."""

    def __init__(self) -> None:
        self._times = array("d")
        self._sizes = array("Q")

    @property
    def covered(self) -> int:
        """Bytes whose time is known."""
        return self._sizes[-1] if self._sizes else 0

    @property
    def last(self) -> float:
        """Time of the latest record; 0 without one."""
        return self._times[-1] if self._times else 0.0

    def add(self, time: float, size: int) -> None:
        """Record that the file had `size` bytes at `time`; a record that does not increase is dropped."""
        if size > self.covered:
            self._times.append(max(time, self.last))
            self._sizes.append(size)

    def times_of(self, offsets: Sequence[int]) -> list[float]:
        """The times of bytes at rising `offsets`, spread evenly over the step in which they came."""
        times: list[float] = []
        done = 0
        while done < len(offsets):
            note = bisect_right(self._sizes, offsets[done])
            if note == len(self._sizes):
                return times + [self.last] * (len(offsets) - done)
            upto = bisect_left(offsets, self._sizes[note], done)
            end, low = self._times[note], self._sizes[note - 1] if note else 0
            begin = max(end - STEP, self._times[note - 1]) if note else end - STEP
            pace = (end - begin) / (self._sizes[note] - low)
            times += [begin + (offset - low) * pace for offset in offsets[done:upto]]
            done = upto
        return times


class GrowthReader:
    """Follows one `growth.jsonl`: the timelines of every rank's log of one host.

    Args:
        offset: Seconds that the host's clock is ahead of the leader's.
    """

    def __init__(self, path: Path, offset: float = 0.0) -> None:
        self._path = path
        self._offset = offset
        self._read = 0
        self._sizes: dict[int, int] = {}
        self._notes: dict[int, list[list[tuple[float, int]]]] = {}
        self.found = False

    def look(self) -> bool:
        """Read new records; True if there were any."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return False
        self.found = True
        whole = data.rpartition(b"\n")[0]
        self._read += len(whole) + bool(whole)
        for line in whole.split(b"\n"):
            self._take(line)
        return bool(whole)

    def pour(self, rank: int, newer: int, base: int, into: Timeline) -> None:
        """Copy new records of a rank's log into a timeline.

        Args:
            newer: How many files of this rank are younger than this one (a shrunk size begins a new file).
            base: Offset of the first byte that is held.
        """
        files = self._notes.get(rank, [])
        if newer < len(files):
            for time, size in files[-1 - newer]:
                if size > base:
                    into.add(time, size)
            files[-1 - newer] = []

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            time = float(record["t"]) - self._offset
            sizes = {int(rank): int(size) for rank, size in record["sizes"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        for rank, size in sizes.items():
            files = self._notes.setdefault(rank, [[]])
            if size < self._sizes.get(rank, 0):
                files.append([])
            self._sizes[rank] = size
            files[-1].append((time, size))
