"""The history of a run's numbers, for charts: compact arrays of bounded size, outside the state.

One thread puts, any thread reads: arrays only grow at their end, and a shorter copy takes their place at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.show.numbers import number

BUDGET = 1 << 21
"""Samples kept of a run over all ranks and metrics, 24 bytes each."""
NAMES = 48
"""Metrics kept at most; what a job invents beyond that is not drawn."""
OPEN = 64
"""Samples of an aggregate that ranks which are behind may still add to."""

_NO_METRICS = frozenset({"t", "step", "steps", "epoch"})
_HOST = ("cpu", "mem_used", "net_rx", "net_tx")
_GPU = ("use", "mem_used", "power", "temp")


class Column(NamedTuple):
    """What one column of a chart shows."""

    low: float
    high: float
    mean: float


@dataclass
class _Data:
    times: array[float]
    low: array[float]
    high: array[float]
    mean: array[float]
    weight: array[float]


def _empty() -> _Data:
    return _Data(array("d"), array("f"), array("f"), array("f"), array("f"))


class Track:
    """One number over time: of a rank, a host, a GPU, or of all of them as an aggregate.

    Args:
        limit: Samples kept; beyond that neighbours are merged, which keeps lows and highs.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = _empty()
        self._open: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._data.weight)

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self._data.mean[-1] if self._data.weight else None

    def put(self, time: float, value: float, key: Hashable = None) -> None:
        """Add a value; values of the same `key` that come close together are one sample of their aggregate."""
        data = self._data
        at = self._sample(time, key)
        if at is not None:
            data.low[at] = min(data.low[at], value)
            data.high[at] = max(data.high[at], value)
            data.weight[at] += 1
            data.mean[at] += (value - data.mean[at]) / data.weight[at]
            return
        if len(data.times) >= self._limit:
            self._halve()
            data = self._data
        if key is not None:
            self._open[key] = len(data.times)
            if len(self._open) > OPEN:
                del self._open[next(iter(self._open))]
        data.times.append(max(time, data.times[-1]) if data.times else time)
        data.low.append(value)
        data.high.append(value)
        data.mean.append(value)
        data.weight.append(1)

    def _sample(self, time: float, key: Hashable) -> int | None:
        """The sample that a value of an aggregate belongs to; None: a new one.

        Of a rank that is far behind (a late viewer is told one rank's whole story after another's) it is the nearest.
        """
        if key is None or key in self._open:
            return self._open.get(key)
        times = self._data.times
        if len(times) <= OPEN or time >= times[-OPEN]:
            return None
        after = bisect_left(times, time)
        return after - (after > 0 and time - times[after - 1] < times[after] - time)

    def at(self, time: float) -> float | None:
        """The value at a time: the newest one that is not later."""
        place = bisect_right(self._data.times, time, 0, len(self))
        return self._data.mean[place - 1] if place else None

    def recent(self, count: int, time: float) -> float | None:
        """The median of the last `count` values up to a time."""
        data = self._data
        end = bisect_right(data.times, time, 0, len(data.weight))
        values = sorted(data.mean[max(0, end - count) : end])
        return values[len(values) // 2] if values else None

    def columns(self, begin: float, end: float, count: int, until: float) -> list[Column | None]:
        """Lows, highs and means of `count` equal spans of the time from `begin` to `end`, nothing after `until`."""
        data = self._data
        size = len(data.weight)
        first, last = bisect_left(data.times, begin, 0, size), 0
        stop = bisect_right(data.times, until, 0, size)
        found: list[Column | None] = []
        for column in range(1, count + 1):
            last = min(stop, bisect_left(data.times, begin + (end - begin) * column / count, first, size))
            found.append(_column(data, first, last) if last > first else None)
            first = max(first, last)
        return found

    def _halve(self) -> None:
        old, new = self._data, _empty()
        for column in range(0, len(old.times), 2):
            new.times.append(old.times[column])
            low, high, mean = _column(old, column, min(column + 2, len(old.times)))
            new.low.append(low)
            new.high.append(high)
            new.mean.append(mean)
            new.weight.append(sum(old.weight[column : column + 2]))
        self._open.clear()
        self._data = new


def _column(data: _Data, first: int, last: int) -> Column:
    if last - first == 1:
        return Column(data.low[first], data.high[first], data.mean[first])
    means = data.mean[first:last]
    return Column(min(data.low[first:last]), max(data.high[first:last]), sum(means) / len(means))


Place = int | tuple[int, int]
"""Whose number: a rank, a node, or (node, GPU)."""


class History:
    """All tracks of a run: metric name → aggregate, and → place → its own.

    Telemetry is called `cpu`, `mem_used`, `net_rx`, `net_tx`, `gpu.use`, `gpu.mem_used`, `gpu.power`, `gpu.temp`.
    """

    def __init__(self, world_size: int) -> None:
        self.all: dict[str, Track] = {}
        self.each: dict[str, dict[Place, Track]] = {}
        self._limit = max(256, min(1 << 15, BUDGET // (8 * max(1, world_size))))

    def metrics(self, time: float, attempt: int, rank: int, record: Mapping[str, Any]) -> None:
        """Take a record of a rank's metrics file."""
        step = record.get("step")
        key = (attempt, step) if isinstance(step, int) else None
        self._put(time, key, rank, ((name, record[name]) for name in record if name not in _NO_METRICS))

    def telemetry(self, time: float, node: int, record: Mapping[str, Any]) -> None:
        """Take a record of a host's telemetry."""
        key = int(time)
        self._put(time, key, node, ((name, record.get(name)) for name in _HOST))
        gpus = record.get("gpus")
        for gpu in gpus if isinstance(gpus, list) else ():
            if isinstance(gpu, dict) and isinstance(index := gpu.get("index"), int):
                self._put(time, key, (node, index), ((f"gpu.{name}", gpu.get(name)) for name in _GPU))

    def _put(self, time: float, key: Hashable, place: Place, values: Iterable[tuple[str, Any]]) -> None:
        for name, value in values:
            known = number(value)
            if known is None or abs(known) > 1e38:
                continue
            if name not in self.all:
                if len(self.all) >= NAMES:
                    continue
                self.each[name] = {}
                self.all[name] = Track(self._limit)
            tracks = self.each[name]
            if place not in tracks:
                tracks[place] = Track(self._limit)
            tracks[place].put(time, known)
            self.all[name].put(time, known, key)
