"""The load of every host and GPU as bars, and over time as areas, for large terminals and few hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from textual.strip import Strip

from disttui.runner.runs.state import HostState
from disttui.runner.text import clean
from disttui.tui.dashboard.hosts import is_stale
from disttui.tui.load import meters
from disttui.tui.run.feed import Snapshot
from disttui.tui.run.series import Track
from disttui.tui.widgets.drawn import Drawn, Piece, line

NAME = 14
"""Maximum cells for a host's name."""
KIND = 7
"""Cells for the kind of a measure."""
BAR = 14
"""Cells of a bar, without its number."""
TALL = 4
"""Maximum rows for one measure."""
HELD = 4.0
"""Seconds for which a value fills gaps after it; hosts send one value per second."""


class Measure(NamedTuple):
    """A measured quantity of a host or its GPUs, shown in percent."""

    node: int
    kind: str
    """Such as `cpu`, `memory`, `gpu 3` or `8 gpus`."""
    tracks: tuple[Track, ...]
    """The tracks whose mean is shown."""
    per: float = 1.0
    """The value of one percent in the tracks' unit."""


class LoadPane(Drawn):
    """One or more rows per measure; measures that do not fit are combined, and without room the pane is hidden."""

    BORDER_TITLE = "Load over the run"
    room = 0
    """Maximum rows that it may take."""
    _snapshot: Snapshot | None = None
    _measures: Sequence[Measure] = ()
    _each = 1

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.fit(self.room)
        self.redraw()

    def fit(self, room: int) -> None:
        """Show the most detailed measures that fit into `room` rows."""
        before = self.rows(0)
        self.room = room
        snapshot = self._snapshot
        offered = _offered(snapshot) if snapshot is not None and room else ()
        self._measures = next((found for found in offered if 0 < len(found) <= room), ())
        self._each = max(1, min(TALL, room // len(self._measures))) if self._measures else 1
        self.display = bool(self._measures)
        if self.rows(0) != before:
            self.refresh(layout=True)

    def rows(self, width: int) -> int:
        return self._each * len(self._measures)

    def draw(self, width: int, height: int) -> list[Strip]:
        """Draw the name, kind, bar and value of each measure, and its values over time."""
        strips: list[Strip] = []
        snapshot = self._snapshot
        if snapshot is None:
            return strips
        hosts = snapshot.state.hosts
        name = min(NAME, max((len(clean(host.name)) for host in hosts), default=0))
        before = None
        for one in self._measures:
            title = meters.fit(clean(hosts[one.node].name) if one.node != before else "", name)
            strips += self._block(one, title, width, snapshot)
            before = one.node
        return strips

    def _block(self, one: Measure, title: str, width: int, snapshot: Snapshot) -> list[Strip]:
        left = len(title) + KIND + BAR + 10
        room = max(0, width - left)
        quiet = self.component("muted")
        known = [track.at(snapshot.now) for track in one.tracks]
        values = [value / one.per for value in known if value is not None]
        stale = is_stale(snapshot.state.hosts[one.node], snapshot)
        now = sum(values) / len(values) if values and not stale else None
        # The upper quarter of a row stays empty, so that rows do not touch.
        top = 100.0 * self._each / (self._each - 0.25)
        rows = meters.area(_means(one, snapshot, room), room, self._each, top) if room else [""] * self._each
        head: list[Piece] = [title, (f" {one.kind:<{KIND}} ", quiet), *meters.bar(now, BAR, self.component), "  "]
        blank: list[Piece] = [" " * left]
        return [line([*(head if y == 0 else blank), (row, self.component("faint"))]) for y, row in enumerate(rows)]


def _means(one: Measure, snapshot: Snapshot, count: int) -> list[float | None]:
    """Means (%) over the run so far, in `count` columns; None where values are missing."""
    if snapshot.began is None:
        return [None] * count
    drawn = [track.columns(snapshot.began, snapshot.now, count, snapshot.now) for track in one.tracks]
    means = []
    for column in zip(*drawn, strict=True):
        values = [value.mean / one.per for value in column if value]
        means.append(sum(values) / len(values) if values else None)
    return held(means, int(HELD * count / max(1.0, snapshot.now - snapshot.began)))


def held(values: Sequence[float | None], most: int) -> list[float | None]:
    """Repeat each value in up to `most` columns after it that have no value.

    At the beginning of a run, a column is shorter than the interval between samples; that is not a gap.
    """
    found: list[float | None] = []
    last, left = None, 0
    for value in values:
        last, left = (value, most) if value is not None else (last, left - 1)
        found.append(last if left >= 0 else None)
    return found


def _cpu(host: HostState, snapshot: Snapshot) -> list[Measure]:
    track = snapshot.history.each.get("cpu", {}).get(host.node)
    return [Measure(host.node, "cpu", (track,))] if track is not None else []


def _memory(host: HostState, snapshot: Snapshot) -> list[Measure]:
    track = snapshot.history.each.get("mem_used", {}).get(host.node)
    total = host.telemetry.get("mem_total") if host.telemetry else None
    return [Measure(host.node, "memory", (track,), total / 100)] if track is not None and total else []


def _gpu_tracks(host: HostState, snapshot: Snapshot) -> list[tuple[int, Track]]:
    known = snapshot.history.each.get("gpu.use", {})
    # A copy, because the feed's thread may add a GPU.
    gpus = sorted(snapshot.history.gpus.get(host.node, {}).copy())
    return [(index, track) for index in gpus if (track := known.get((host.node, index))) is not None]


def _each_gpu(host: HostState, snapshot: Snapshot) -> list[Measure]:
    return [Measure(host.node, f"gpu {index}", (track,)) for index, track in _gpu_tracks(host, snapshot)]


def _mean_gpu(host: HostState, snapshot: Snapshot) -> list[Measure]:
    tracks = tuple(track for _, track in _gpu_tracks(host, snapshot))
    return [Measure(host.node, f"{len(tracks)} gpus" if len(tracks) > 1 else "gpu", tracks)] if tracks else []


def _offered(snapshot: Snapshot) -> Iterator[list[Measure]]:
    """Yield sets of measures, the most detailed first; the last has one per host: its GPUs, or else its CPU."""
    hosts = snapshot.state.hosts
    for kinds in ((_each_gpu, _cpu, _memory), (_each_gpu, _cpu), (_mean_gpu, _cpu)):
        yield [one for host in hosts for kind in kinds for one in kind(host, snapshot)]
    yield [one for host in hosts for one in (_mean_gpu(host, snapshot) or _cpu(host, snapshot))[:1]]
