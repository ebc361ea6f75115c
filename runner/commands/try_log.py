"""`disttui metrics --try`: what the hosts of a run would read from a log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from runner.errors import InputError
from runner.formatting import amount
from runner.node.observe.harvest import Reader
from runner.node.observe.patterns import LONGEST
from runner.node.observe.recogniser import Recogniser
from runner.text import clean

_PIECE = 1 << 20
"""Bytes of a file without ends of lines that are read at once."""
_SHOWN = 20
"""Lines with metrics that are shown one by one, as text."""


def try_log(path: Path, pattern: str | None, say: Callable[[str], None], *, as_json: bool = False) -> int:
    """Show the metrics in a file's lines; returns 0, or 1 where there are none.

    Raises:
        InputError: The file cannot be read, or the expression is none.
    """
    reader, known = Reader(pattern), Recogniser()
    if reader.notes:
        raise InputError(reader.notes[0].replace("metrics.pattern", "--pattern"), "See Python's re module.")
    count, telling, names = 0, 0, Counter[str]()
    try:
        with path.open("rb") as file:
            for number, line in _lines(file):
                count = number
                for record in reader.read([line], known, 1):
                    telling += 1
                    names.update(record.keys())
                    if as_json:
                        say(json.dumps({"line": number, "record": record}))
                    elif telling <= _SHOWN:
                        say(f"{number:>7}  " + ", ".join(f"{clean(name)} {value}" for name, value in record.items()))
    except OSError as error:
        raise InputError(f"{error.strerror}", place=f"{path}") from None
    if not as_json:
        if telling > _SHOWN:
            say(f"    …    and {amount(telling - _SHOWN, 'line')} more")
        for note in reader.notes:
            say(note)
        say(f"{amount(telling, 'line')} of {count:,} hold metrics" + (f": {_most(names)}" if names else "."))
        if not telling:
            say("Give --pattern an expression whose named groups are metrics, such as 'step=(?P<step>\\d+)'.")
    return 0 if telling else 1


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
