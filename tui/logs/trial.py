"""Tries regular expressions on lines, as a program of its own: from standard input to standard output.

It ends by a signal when it needs more CPU time for one answer than it may have, and when its input ends.
"""

from __future__ import annotations

import re
import signal
import struct
import sys
from array import array
from itertools import compress, count
from typing import AnyStr

HEAD = struct.Struct("<?III")
"""Whether bytes are tried or text, flags of the expression, the bytes it has, those of the lines; both follow."""
COUNT = struct.Struct("<I")
"""How many numbers of lines follow, each an unsigned int."""
LIMIT = 1.0
"""Seconds of CPU time for one answer."""


def main() -> None:
    """Answer until the input ends."""
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := questions.read(HEAD.size)) == HEAD.size:
        of_bytes, flags, size, length = HEAD.unpack(head)
        pattern, lines = questions.read(size), questions.read(length)
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        if of_bytes:
            found = fits(re.compile(pattern, flags), lines.split(b"\n"))
        else:
            found = fits(re.compile(pattern.decode(), flags), lines.decode().split("\n"))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(COUNT.pack(len(found)) + found.tobytes())
        answers.flush()


def fits(expression: re.Pattern[AnyStr], lines: list[AnyStr]) -> array[int]:
    """Which lines an expression fits."""
    return array("I", compress(count(), map(expression.search, lines)))


if __name__ == "__main__":
    main()
