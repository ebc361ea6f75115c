"""The logs of a run in its local mirror: its attempts, and the growing files of one of them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.protocol.regular import read_regular
from runner.runs.store import KEPT
from runner.text import clean
from tui.log.index import LineIndex
from tui.log.merge import LINE, SHIFT, LogSource, MergedOrder
from tui.log.timeline import GrowthReader

DISCOVER = 1.0
"""Seconds between two searches for new files."""
UNTIMED = 1.0
"""Seconds to wait for the time of new bytes before their time of arrival is taken."""
CLOCKS = 0.05
"""Change of a clock's offset, in seconds, from which on lines are sorted again."""

_ATTEMPT = re.compile(r"attempt-([0-9]{1,6})")
_LOG = re.compile(r"rank-([0-9]{1,7})\.log(?:~(.*))?")


class LogSources:
    """The mirror of one run.

    Args:
        mirror: Its folder, which contains one folder per node rank.
        names: The hosts' names by node rank; a missing name is replaced by the number.
        offsets: Node → its clock minus the leader's, seconds.
    """

    def __init__(self, mirror: Path, names: Sequence[str] = (), offsets: Mapping[int, float] | None = None) -> None:
        self.mirror = mirror
        self._names = [clean(name) for name in names]
        self._offsets = dict(offsets or {})

    def set_offsets(self, offsets: Mapping[int, float]) -> bool:
        """Take the present clock offsets (s); True if open logs must be read again."""
        apart = any(abs(self.offset(node) - offset) > CLOCKS for node, offset in offsets.items())
        self._offsets.update(offsets)
        return apart

    def attempts(self) -> list[int]:
        """The attempts with files in the mirror, in order."""
        found = (_ATTEMPT.fullmatch(path.name) for path in self.mirror.glob("*/attempt-*"))
        return sorted({int(match[1]) for match in found if match})

    def open(self, attempt: int | None = None) -> AttemptLog:
        """The logs of one attempt; None: of the latest one at the first poll."""
        return AttemptLog(self, attempt)

    def folders(self, attempt: int) -> dict[int, Path]:
        """Node rank → the attempt's folder."""
        found = self.mirror.glob(f"*/attempt-{attempt}")
        return {int(path.parent.name): path for path in found if path.parent.name.isdecimal()}

    def name(self, node: int) -> str:
        """The name of a host."""
        return self._names[node] if node < len(self._names) else f"node{node}"

    def offset(self, node: int) -> float:
        """Seconds that a host's clock is ahead of the leader's."""
        return self._offsets.get(node, 0.0)


class AttemptLog:
    """All logs of one attempt, their lines in one order. One thread polls; any thread may read."""

    def __init__(self, run: LogSources, attempt: int | None) -> None:
        self._run = run
        self.attempt = attempt
        self.attempts: list[int] = []
        """All attempts seen so far."""
        self.sources: list[LogSource] = []
        self.order = MergedOrder()
        self.loaded = False
        """Whether everything present at the start has been read."""
        self._live: dict[Path, LogSource] = {}
        self._growth: dict[int, GrowthReader] = {}
        self._untimed: dict[int, tuple[int, float]] = {}
        self.settled = False
        """Whether it has been sorted, too."""
        self._discover_at = 0.0

    @property
    def timed(self) -> bool:
        """Whether the lines' times come from the hosts; else they are times of arrival here."""
        return any(growth.found for growth in self._growth.values())

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a log."""
        return sorted({source.rank for source in self.sources})

    def refresh(self) -> None:
        """Look for new files at the next poll."""
        self._discover_at = 0.0

    def poll(self, deadline: float) -> bool:
        """Read new lines until `deadline` (monotonic clock, s); True if anything changed."""
        changed = self._discover() if time.monotonic() >= self._discover_at else False
        for source in list(self._live.values()):
            if not source.index.look():
                self._retire(source)
                changed = True
        for growth in self._growth.values():
            changed = growth.look() or changed
        changed = self._index(deadline) or changed
        self.loaded = self.loaded or not any(source.index.behind for source in self._live.values())
        if self.loaded:
            self._give_times()
            changed = self._merge(deadline) or changed
        return changed

    def read(self, entry: int) -> bytes:
        """The bytes of one line of the order."""
        return self.sources[entry >> SHIFT].index.line(entry & LINE)

    def source_of(self, entry: int) -> LogSource:
        """The file that contains a line of the order."""
        return self.sources[entry >> SHIFT]

    def time_of(self, entry: int) -> float:
        """The time of a line (unix time, s)."""
        source = self.source_of(entry)
        return source.timeline.times_of([source.index.starts[entry & LINE]])[0]

    def tails(self) -> list[tuple[LogSource, bytes]]:
        """The unfinished lines, such as progress bars."""
        unfinished = (source for source in self._live.values() if source.index.scanned > source.index.starts[-1])
        return [(source, source.index.tail()) for source in unfinished]

    def _discover(self) -> bool:
        self._discover_at = time.monotonic() + DISCOVER
        self.attempts = self._run.attempts()
        if self.attempt is None:
            if not self.attempts:
                return False
            self.attempt = self.attempts[-1]
        known = len(self.sources)
        for node, folder in sorted(self._run.folders(self.attempt).items()):
            if node not in self._growth:
                self._growth[node] = GrowthReader(folder / "growth.jsonl", self._run.offset(node))
            self._discover_host(node, folder)
        return len(self.sources) > known

    def _discover_host(self, node: int, folder: Path) -> None:
        held = {source.index.inode for source in self.sources}
        logs = [(match, path) for path in folder.iterdir() if (match := _LOG.fullmatch(path.name))]
        for match, path in sorted(logs, key=lambda log: (int(log[0][1]), _age(log[0][2]))):
            current = match[2] is None
            if path in self._live if current else _inode(path) in held:
                continue
            base = _base(folder, path.name) if current else 0
            source = self._add(node, int(match[1]), path, base)
            if current:
                self._live[path] = source
            else:
                while source.index.grow():
                    pass
                self._close(source)

    def _add(self, node: int, rank: int, path: Path, base: int) -> LogSource:
        label = f"{self._run.name(node)}:{rank}"
        source = LogSource(len(self.sources), node, rank, label, LineIndex(path, base))
        source.index.look()
        self.sources.append(source)
        return source

    def _retire(self, source: LogSource) -> None:
        """Handle a file that the mirror has renamed and begun again, or that was truncated."""
        path = source.index.path
        del self._live[path]
        for other in path.parent.glob(f"{path.name}~*"):
            if _inode(other) == source.index.inode:
                source.index.path = other
                while source.index.grow():
                    pass
        self._close(source)
        self._discover_at = 0.0

    def _close(self, source: LogSource) -> None:
        source.index.finish()
        source.closed = True

    def _index(self, deadline: float) -> bool:
        grown = False
        behind = [source for source in self._live.values() if source.index.behind]
        while behind:
            behind = [source for source in behind if source.index.grow() and source.index.behind]
            grown = True
            if time.monotonic() > deadline:
                break
        return grown

    def _give_times(self) -> None:
        now = time.monotonic()
        newer: dict[tuple[int, int], int] = {}
        for source in reversed(self.sources):
            growth, place = self._growth[source.node], (source.node, source.rank)
            growth.pour(source.rank, newer.get(place, 0), source.index.base, source.timeline)
            newer[place] = newer.get(place, 0) + 1
            covered = source.timeline.covered
            if self._untimed.get(source.number, (-1, 0.0))[0] != covered:
                self._untimed[source.number] = (covered, now)
            if covered >= source.index.scanned:
                continue
            if source.closed or not growth.found or now - self._untimed[source.number][1] > UNTIMED:
                last = max(other.timeline.last for other in self.sources)
                source.timeline.add(last if growth.found and last else time.time(), source.index.scanned)

    def _merge(self, deadline: float) -> bool:
        changed = False
        hold = len(self.sources) > 1 and self.settled
        while self.order.merge(self.sources, hold=hold):
            changed = True
            if time.monotonic() > deadline:
                return True
        self.settled = True
        return changed


def _age(generation: str | None) -> tuple[int, int]:
    """Sort key for the files of one rank: renamed ones without a generation, by generation, then the present one."""
    if generation is None:
        return (2, 0)
    return (1, int(generation)) if generation.isdecimal() else (0, 0)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _base(folder: Path, name: str) -> int:
    """Offset in the original of the first byte mirrored; 0 if the mirror does not record it."""
    try:
        held = json.loads(read_regular(folder.parent / KEPT))
        return int(held[f"{folder.name}/{name}"][1])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return 0
