"""The ranks that made a run fail or stall, whose lines the log marks, and the line where each failed."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from tui.log.merge import BLOCK, LINE, SHIFT, MergedOrder
from tui.log.sources import AttemptLog

BACK = 400
"""How many lines from the end of a rank's log to search for its failing line."""


class Blame(NamedTuple):
    """The culprits and victims of one attempt. `said` must be clean."""

    attempt: int = 0
    culprits: frozenset[int] = frozenset()
    victims: frozenset[int] = frozenset()
    said: Mapping[int, str] = {}
    """Rank → the end of its failing line, if known."""
    stalled: bool = False
    """Whether it is a stall: the others have not failed but wait."""


def failing_line(log: AttemptLog, rank: int, said: str) -> int | None:
    """The entry of the line where a rank failed: the last line with the text `said`, else the last of its log."""
    source = next((one for one in reversed(log.sources) if one.rank == rank and one.merged), None)
    if source is None:
        return None
    last = source.merged - 1
    wanted = said.encode("utf-8", "replace")
    found = (line for line in range(last, max(-1, last - BACK), -1) if wanted in source.index.line(line))
    return (source.number << SHIFT) + (next(found, last) if wanted else last)


def place_of(order: MergedOrder, entry: int) -> int | None:
    """The place of an entry in the order; None if it has none yet."""
    source, line, items = entry >> SHIFT, entry & LINE, order.items
    total = len(items)
    for first in range((total - 1) // BLOCK * BLOCK, -1, -BLOCK):
        begin, end = order.spans(first, min(first + BLOCK, total)).get(source, (0, 0))
        if begin <= line < end:
            return first + array("Q", items[first : first + BLOCK]).index(entry)
    return None
