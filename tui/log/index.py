"""The offsets of the lines of a growing log file; the text stays on disk."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, count, pairwise
from operator import add
from pathlib import Path

from disttui.runner.protocol.regular import regular
from disttui.runner.text import LINE_LIMIT

CHUNK = 256 * 1024
"""Maximum bytes per read: small enough that no step holds the interpreter for long."""

KEPT = 4 * 1024
"""Bytes of the last chunk that stay in memory: the newest lines are drawn from there."""

_CONTROLS = bytes({*range(9), *range(11, 32), 127})


class LineIndex:
    """The offsets of the lines of one file, eight bytes each.

    A line longer than `LINE_LIMIT` is split into several, as everywhere in disttui.

    Args:
        path: The file; it may not exist yet.
        base: Offset of the first mirrored byte; the file is sparse before it.
    """

    def __init__(self, path: Path, base: int = 0) -> None:
        self.path = path
        self.base = base
        self.inode = 0
        self.starts = array("Q", [base])
        """Offset of every whole line, then that of the unfinished one."""
        self.scanned = base
        """Offset up to which the bytes were scanned."""
        self.size = 0
        self._special: list[tuple[int, int]] = []
        self._tail = ((0, 0), b"")
        self._kept = (base, b"")

    def __len__(self) -> int:
        """Number of whole lines."""
        return len(self.starts) - 1

    @property
    def behind(self) -> bool:
        """Whether there are bytes that have not been scanned."""
        return self.scanned < self.size

    def look(self) -> bool:
        """Update the file's size; return False if the file was replaced or truncated."""
        try:
            found = self.path.stat()
        except OSError:
            return True
        if not self.inode:
            self.inode = found.st_ino
        if found.st_ino != self.inode or (found.st_size < self.scanned and self.scanned > self.base):
            return False
        self.size = found.st_size
        return True

    def grow(self) -> bool:
        """Scan one more chunk; return False if there was none."""
        data = self._read(self.scanned, CHUNK)
        if not data:
            self.size = self.scanned
            return False
        *lines, _ = data.split(b"\n")
        ends = array("Q", map(add, accumulate(map(len, lines)), count(self.scanned + 1)))
        # The first line of a chunk may exceed the limit together with the unfinished line before it.
        if ends and ends[0] - self.starts[-1] <= LINE_LIMIT and max(map(len, lines)) <= LINE_LIMIT:
            self.starts.extend(ends)
        else:
            for end in ends:
                self._cut(end - 1)
                self.starts.append(end)
        if not data.isascii() or len(data.translate(None, _CONTROLS)) < len(data):
            begin = self._special.pop()[0] if self._special and self._special[-1][1] == self.scanned else self.scanned
            self._special.append((begin, self.scanned + len(data)))
        self.scanned += len(data)
        self._cut(self.scanned)
        kept = data[-KEPT:]
        self._kept = (self.scanned - len(kept), kept)
        return True

    def plain(self, first: int, last: int) -> bool:
        """Whether lines `first` up to but not including `last` are shown as they are: printable ASCII and tabs."""
        begin, end = self.starts[first], self.starts[last]
        near = bisect_right(self._special, (begin, 0))
        return not any(low < end and high > begin for low, high in self._special[max(0, near - 1) : near + 1])

    def finish(self) -> None:
        """Count the unfinished line as a whole one, because the file will not grow."""
        if self.scanned > self.starts[-1]:
            self.starts.append(self.scanned)

    def line(self, number: int) -> bytes:
        """The bytes of one line, without its end."""
        start, end = self.starts[number], self.starts[number + 1]
        return self._read(start, end - start).removesuffix(b"\n")

    def chunk(self, first: int, last: int) -> bytes:
        """The bytes of lines `first` up to but not including `last`, as they are in the file."""
        return self._read(self.starts[first], self.starts[last] - self.starts[first])

    def split(self, data: bytes, first: int, last: int) -> list[bytes]:
        """Split what `chunk` returned into its lines."""
        lines = data.split(b"\n")
        if data.endswith(b"\n"):
            lines.pop()
        if len(lines) == last - first:
            return lines
        bounds = [self.starts[number] - self.starts[first] for number in range(first, last + 1)]
        return [data[a:b].removesuffix(b"\n") for a, b in pairwise(bounds)]

    def tail(self) -> bytes:
        """The bytes of the unfinished line; empty if the last line is whole."""
        span = (self.starts[-1], self.scanned)
        if self._tail[0] != span:
            self._tail = (span, self._read(span[0], span[1] - span[0]))
        return self._tail[1]

    def line_at(self, offset: int) -> int:
        """The number of the line that contains the byte at `offset`."""
        return bisect_right(self.starts, offset) - 1

    def offsets(self, first: int, last: int) -> Sequence[int]:
        """The offsets of lines `first` up to but not including `last`."""
        return self.starts[first:last]

    def _cut(self, end: int) -> None:
        while end - self.starts[-1] > LINE_LIMIT:
            self.starts.append(self.starts[-1] + LINE_LIMIT)

    def _read(self, start: int, length: int) -> bytes:
        begin, kept = self._kept
        if begin <= start and start + length <= begin + len(kept):
            return kept[start - begin : start - begin + length]
        # Opened for every read, because a thousand ranks would exhaust the file descriptors of a login.
        try:
            file = regular(self.path, os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.pread(file, length, start)
        finally:
            os.close(file)
