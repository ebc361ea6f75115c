"""A program that tries regular expressions on lines from standard input, and writes answers to standard output.

SIGPROF kills it if one answer takes more than LIMIT seconds of CPU time; it also exits at the end of its input.
"""

from __future__ import annotations

import marshal
import re
import signal
import sys
from array import array
from itertools import compress, count

LIMIT = 1.0
"""Seconds of CPU time for one answer."""


def main() -> None:
    """Read (expression, flags, lines as bytes or text); write the numbers of the lines that match, as unsigned ints."""
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            pattern, flags, lines = marshal.load(questions)  # noqa: S302 from the app that has started this
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        end = b"\n" if isinstance(lines, bytes) else "\n"
        found = array("I", compress(count(), map(re.compile(pattern, flags).search, lines.split(end))))
        signal.setitimer(signal.ITIMER_PROF, 0)
        marshal.dump(found.tobytes(), answers)
        answers.flush()


if __name__ == "__main__":
    main()
