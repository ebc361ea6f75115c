"""The lines that a mirror lacks before the start of a log, and how a view keeps its position when they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tui.log.engine import SLICE, SearchProgress, Work
from tui.log.merge import LINE, SHIFT, LogSource
from tui.log.rows import LogFilter, Rows
from tui.log.sources import AttemptLog
from tui.log.view import TAIL, LogViewState

LEAST = 4 << 20
"""The least bytes of all logs together per request; more if more is held, so that each request doubles that."""
NEAR = 50_000
"""Lines around the expected place that are searched first."""


@dataclass(frozen=True)
class Older:
    """Bytes of one log that its host has, and the mirror lacks."""

    node: int
    name: str
    """Its name on the host: `attempt-1/rank-0.log`."""
    start: int
    """Offset of the first byte in the mirror."""
    upto: int
    """Fetch from here on."""


def wanted(lacking: Sequence[LogSource]) -> tuple[Older, ...]:
    """The next parts to request of logs whose beginnings are only on their hosts."""
    held = sum(source.index.size - source.index.base for source in lacking)
    each = max(LEAST, held) // len(lacking)
    return tuple(_older(source, each) for source in lacking)


def _older(source: LogSource, length: int) -> Older:
    path, start = source.index.path, source.index.base
    return Older(source.node, f"{path.parent.name}/{path.name}", start, max(0, start - length))


def read_anew(log: AttemptLog, choice: LogFilter, cancelled: Callable[[], bool]) -> SearchProgress | None:
    """Read all of a log as it is now, and filter it; None if cancelled."""
    rows = Rows(log, choice)
    while not log.settled or rows.step():
        if cancelled():
            return None
        if not log.settled:
            log.poll(time.monotonic() + SLICE)
    return SearchProgress(Work(log, rows), len(log.order), len(rows), 0, complete=True, searched=True,
                    attempts=tuple(log.attempts))  # fmt: skip


def moved(view: LogViewState, old: AttemptLog, new: AttemptLog) -> LogViewState:
    """The view of the same lines in `new`, which contains more lines than `old`."""

    def place(at: int) -> int:
        return at if at >= TAIL else _place(at, old, new)

    seen = place(view.seen - 1) + 1 if 0 < view.seen <= len(old.order) else view.seen
    mark = None if view.mark is None else place(view.mark)
    return replace(view, top=place(view.top), cursor=place(view.cursor), mark=mark, seen=seen)


def _place(at: int, old: AttemptLog, new: AttemptLog) -> int:
    guess = max(0, at + len(new.order) - len(old.order))
    if at >= len(old.order):
        return guess
    entry = old.order.items[at]
    index = old.sources[entry >> SHIFT].index
    source = next((one for one in new.sources if one.index.path == index.path), None)
    if source is None:
        return guess
    wanted = source.number << SHIFT | source.index.line_at(index.starts[entry & LINE])
    for first, last in ((max(0, guess - NEAR), guess + NEAR), (0, len(new.order))):
        try:
            return new.order.items.index(wanted, first, last)
        except ValueError:
            continue
    return guess
