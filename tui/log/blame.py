"""Which ranks have brought a run down or keep it waiting, as the log marks their lines; and which line says so."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from tui.log.merge import BLOCK, LINE, SHIFT, MergedOrder
from tui.log.sources import AttemptLog

BACK = 400
"""Lines from the end of a rank's log in which its failing line is looked for."""


class Blame(NamedTuple):
    """Of one attempt. What ranks have said must be clean."""

    attempt: int = 0
    culprits: frozenset[int] = frozenset()
    victims: frozenset[int] = frozenset()
    said: Mapping[int, str] = {}
    """Rank → how its failing line ends, where that is known."""
    stalled: bool = False
    """Whether the others only wait for the culprits."""


def failing_line(log: AttemptLog, rank: int, said: str) -> int | None:
    """The entry of the line in which a rank failed: the last that has what it said, else the last of its log."""
    source = next((one for one in reversed(log.sources) if one.rank == rank and one.merged), None)
    if source is None:
        return None
    last = source.merged - 1
    wanted = said.encode("utf-8", "replace")
    found = (line for line in range(last, max(-1, last - BACK), -1) if wanted in source.index.line(line))
    return (source.number << SHIFT) + (next(found, last) if wanted else last)


def place_of(order: MergedOrder, entry: int) -> int | None:
    """The place of an entry in the order; None where it has none yet."""
    source, line, items = entry >> SHIFT, entry & LINE, order.items
    total = len(items)
    for first in range((total - 1) // BLOCK * BLOCK, -1, -BLOCK):
        begin, end = order.spans(first, min(first + BLOCK, total)).get(source, (0, 0))
        if begin <= line < end:
            return first + array("Q", items[first : first + BLOCK]).index(entry)
    return None
