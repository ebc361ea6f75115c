"""A program that tries regular expressions on lines, from standard input to standard output.

A signal ends it when one answer takes more than LIMIT of CPU time; it also ends with its input.
"""

from __future__ import annotations

import os
import re
import signal
import struct
import sys
from array import array
from itertools import compress, count
from typing import AnyStr

HEAD = struct.Struct("<cIIIQII")
"""Kind, flags and length of the expression, bytes that follow it; for a file: offset, bytes, lines."""
TEXT, BYTES, FILE = b"t", b"b", b"f"
"""Kinds: the lines follow as text or as bytes; or the path of their file follows."""
COUNT = struct.Struct("<I")
"""The number of line numbers that follow, each an unsigned int."""
OTHER = 0xFFFFFFFF
"""In place of the count: the file has other lines there, or cannot be read."""
LIMIT = 1.0
"""Seconds of CPU time for one answer."""


def main() -> None:
    """Answer until the input ends."""
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := questions.read(HEAD.size)) == HEAD.size:
        kind, flags, size, length, *place = HEAD.unpack(head)
        pattern, given = questions.read(size), questions.read(length)
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        found: array[int] | None
        if kind == TEXT:
            found = fits(re.compile(pattern.decode(), flags), given.decode().split("\n"))
        else:
            lines = given.split(b"\n") if kind == BYTES else lines_of(given, *place)
            found = None if lines is None else fits(re.compile(pattern, flags), lines)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(COUNT.pack(OTHER) if found is None else COUNT.pack(len(found)) + found.tobytes())
        answers.flush()


def lines_of(path: bytes, offset: int, length: int, count: int) -> list[bytes] | None:
    """The lines of a part of a file; None if their number differs from `count`."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.pread(file, length, offset)
    except OSError:
        return None
    finally:
        os.close(file)
    lines = data.split(b"\n")
    if data.endswith(b"\n"):
        lines.pop()
    return lines if len(data) == length and len(lines) == count else None


def fits(expression: re.Pattern[AnyStr], lines: list[AnyStr]) -> array[int]:
    """The indices of the lines that match."""
    return array("I", compress(count(), map(expression.search, lines)))


if __name__ == "__main__":
    main()
