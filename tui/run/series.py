"""The history of a run's metrics, in compact arrays of bounded size, and the metrics that charts show.

One thread writes, any thread reads: arrays only grow at their end, or are replaced by a shorter copy in one step.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

from disttui.runner.formatting import number
from disttui.runner.protocol.metrics import Metrics
from disttui.runner.protocol.telemetry import Telemetry
from disttui.runner.text import clean

BUDGET = 1 << 21
"""Approximate maximum of samples kept of a run over all ranks and metrics, 12 to 24 bytes each."""
NAMES = 48
"""Maximum number of metrics kept; further ones of a job are not drawn."""
ATTEMPTS = 256
"""Maximum number of attempts whose steps are kept."""
OPEN = 64
"""Number of newest samples of an aggregate to which slower ranks may still add."""

_NO_METRICS = frozenset({"t", "step", "steps", "epoch"})
_HOST = ("cpu", "mem_used", "net_rx", "net_tx")
_GPU = {name: f"gpu.{name}" for name in ("use", "mem_used", "power", "temp")}


class Bucket(NamedTuple):
    """The values of one column of a chart."""

    low: float
    high: float
    mean: float


@dataclass
class _Data:
    """Samples and their unix times (s); `low`, `high` and `mean` may be the same array before the first merge."""

    times: array[float]
    low: array[float]
    high: array[float]
    mean: array[float]
    """Grows last, so its length is the number of complete samples."""
    weight: array[float]
    """Number of values in each sample, only in aggregates."""


class Track:
    """One metric of a rank, a host or a GPU over time.

    Args:
        limit: Maximum number of samples kept; at the limit neighbours are merged, which keeps lows and highs.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit & ~1  # samples are merged in pairs
        values = array("f")
        self._data = _Data(array("d"), values, values, values, array("f"))

    def __len__(self) -> int:
        return len(self._data.mean)

    @property
    def last(self) -> float | None:
        """The newest value, or None."""
        return self._data.mean[-1] if self._data.mean else None

    @property
    def latest(self) -> float:
        """The time of the newest value (unix time, s), or -inf."""
        return self._data.times[-1] if self._data.times else -math.inf

    @property
    def first(self) -> float | None:
        """The oldest value, or None."""
        return self._data.mean[0] if self._data.mean else None

    def put(self, time: float, value: float) -> None:
        """Add a value; an earlier time than that of the newest value counts as that time."""
        data = self._data
        times = data.times
        if len(times) >= self._limit:
            self._halve()
            data = self._data
            times = data.times
        times.append(time if not times or time > times[-1] else times[-1])
        mean = data.mean
        if data.low is not mean:
            data.low.append(value)
            data.high.append(value)
        mean.append(value)

    def at(self, time: float) -> float | None:
        """The newest value up to a time, or None."""
        data = self._data
        place = bisect_right(data.times, time, 0, len(data.mean))
        return data.mean[place - 1] if place else None

    def recent(self, count: int, time: float) -> list[float]:
        """The last `count` values up to a time, sorted."""
        data = self._data
        end = bisect_right(data.times, time, 0, len(data.mean))
        return sorted(data.mean[max(0, end - count) : end])

    def when(self, value: float, otherwise: float) -> float:
        """The first time at which a track of rising values reached `value`, or `otherwise` if it never did."""
        data = self._data
        place = bisect_left(data.mean, value)
        return data.times[place] if place < len(data.mean) else otherwise

    def columns(self, begin: float, end: float, count: int, until: float) -> list[Bucket | None]:
        """The values in `count` equal spans from `begin` to `end`, without those after `until`; None without any."""
        return self.between([begin + (end - begin) * column / count for column in range(count + 1)], until)

    def between(self, edges: Sequence[float], until: float) -> list[Bucket | None]:
        """The values between each edge and the next, without those after `until`; None without any."""
        data = self._data
        size = len(data.mean)
        first, last = bisect_left(data.times, edges[0], 0, size), 0
        stop = bisect_right(data.times, until, 0, size)
        found: list[Bucket | None] = []
        for edge in edges[1:]:
            last = min(stop, bisect_left(data.times, edge, first, size))
            found.append(_column(data, first, last) if last > first else None)
            first = max(first, last)
        return found

    def _halve(self) -> None:
        old = self._data

        def pairs(values: array[float], merge: Callable[[float, float], float]) -> array[float]:
            return array("f", map(merge, values[::2], values[1::2]))

        self._data = _Data(
            old.times[::2],
            pairs(old.low, min),
            pairs(old.high, max),
            pairs(old.mean, lambda one, other: (one + other) / 2),
            pairs(old.weight, add),
        )


class Aggregate(Track):
    """One metric of all ranks, hosts or GPUs over time."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._data = _Data(array("d"), array("f"), array("f"), array("f"), array("f"))
        self._open: dict[Hashable, int] = {}

    def put(self, time: float, value: float, key: Hashable = None) -> None:
        """Add a value; values with the same `key`, if it is among the newest OPEN keys, become one sample.

        A value that is older than the newest OPEN samples (without a key, than the newest sample), for example from a
        rank that is read later, is added to the nearest sample.
        """
        at = self._open.get(key)
        if at is None:
            at = self._nearest(time, 1 if key is None else OPEN)
        if at is None:
            self._append(time, value, key)
            return
        data = self._data
        if value < data.low[at]:
            data.low[at] = value
        elif value > data.high[at]:
            data.high[at] = value
        mean, weight = data.mean, data.weight
        weight[at] += 1
        before = mean[at]
        mean[at] = before + (value - before) / weight[at]

    def _append(self, time: float, value: float, key: Hashable) -> None:
        if len(self._data.times) >= self._limit:
            self._halve()
            self._open = {open_key: at // 2 for open_key, at in self._open.items()}
        if key is not None:
            self._open[key] = len(self._data.times)
            if len(self._open) > OPEN:
                del self._open[next(iter(self._open))]
        self._data.weight.append(1)
        super().put(time, value)

    def _nearest(self, time: float, open_ones: int) -> int | None:
        """The index of the nearest sample if a value is older than the newest `open_ones` samples, or else None.

        Ranks can be far behind each other, because a viewer that attaches late receives one rank after another.
        """
        times = self._data.times
        if len(times) < open_ones or time >= times[-open_ones]:
            return None
        after = bisect_left(times, time)
        return after - (after > 0 and time - times[after - 1] < times[after] - time)


def _column(data: _Data, first: int, last: int) -> Bucket:
    if last - first == 1:
        return Bucket(data.low[first], data.high[first], data.mean[first])
    means = data.mean[first:last]
    return Bucket(min(data.low[first:last]), max(data.high[first:last]), sum(means) / len(means))


Place = int | tuple[int, int]
"""The owner of a track: a rank, a node, or (node, GPU)."""


class MetricHistory:
    """All tracks of a run: `all` has metric name → aggregate, `each` has metric name → place → track.

    Telemetry is named `cpu`, `mem_used`, `net_rx`, `net_tx`, `gpu.use`, `gpu.mem_used`, `gpu.power`, `gpu.temp`.
    """

    def __init__(self, world_size: int) -> None:
        self.all: dict[str, Aggregate] = {}
        self.each: dict[str, dict[Place, Track]] = {}
        self.begun: dict[int, float] = {}
        """Attempt → when it began (unix time, s)."""
        self.steps: dict[int, Track] = {}
        """Attempt → the highest step of any rank over time."""
        self._highest: dict[int, float] = {}
        """Attempt → the newest value of its `steps`."""
        self.gpus: dict[int, dict[int, None]] = {}
        """Node rank → the indices of the GPUs that have tracks, as an ordered set."""
        self._tracks: dict[Place, dict[str, tuple[Track, Aggregate]]] = {}
        self._limit = max(256, min(1 << 15, BUDGET // (8 * max(1, world_size))))

    def metrics(self, time: float, attempt: int, rank: int, record: Metrics) -> None:
        """Take a record of a rank's metrics file."""
        step = record.get("step")
        # Most steps have already been reached by another rank.
        if type(step) is not int or step > self._highest.get(attempt, -1):
            self._reach(time, attempt, number(step))
        key = (attempt, step) if isinstance(step, int) else None
        self._put(time, key, rank, record)

    def telemetry(self, time: float, node: int, record: Telemetry) -> None:
        """Take a record of a host's telemetry."""
        key = int(time)
        figures: Mapping[str, object] = record
        self._put(time, key, node, {name: figures[name] for name in _HOST if name in figures})
        for gpu in record.get("gpus", []):
            card: Mapping[str, object] = gpu
            self._put(time, key, (node, gpu["index"]), {_GPU[name]: card[name] for name in _GPU if name in card})

    def _reach(self, time: float, attempt: int, step: float | None) -> None:
        if step is None:
            return
        steps = self.steps.get(attempt)
        if steps is None:
            if len(self.steps) >= ATTEMPTS:
                return
            steps = self.steps[attempt] = Track(self._limit)
        # The records of other ranks repeat earlier steps.
        if (steps.last is None or steps.last < step < 1e15) and time > steps.latest:
            steps.put(time, step)
            self._highest[attempt] = step

    def _put(self, time: float, key: Hashable, place: Place, values: Mapping[str, object]) -> None:
        known = self._tracks.get(place)
        if known is None:
            known = self._tracks[place] = {}
        for name, value in values.items():
            pair = known.get(name)
            if pair is None and name in _NO_METRICS:
                continue
            real = value if type(value) is float else number(value)
            if real is None:
                continue
            pair = pair or self._begin(known, name, place)
            if pair:
                pair[0].put(time, real)
                pair[1].put(time, real, key)

    def _begin(
        self, known: dict[str, tuple[Track, Aggregate]], name: str, place: Place
    ) -> tuple[Track, Aggregate] | None:
        if name not in self.all:
            if len(self.all) >= NAMES:
                return None
            self.each[name] = {}
            self.all[name] = Aggregate(self._limit)
        if isinstance(place, tuple):
            self.gpus.setdefault(place[0], {})[place[1]] = None
        pair = known[name] = (self.each[name].setdefault(place, Track(self._limit)), self.all[name])
        return pair


def plain(value: float) -> str:
    """A short text of a value, with three or four significant digits: `0.0123`, `1.832`, `41.2k`, `3e-5`."""
    size = abs(value)
    if size == 0:
        return "0"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            scaled = value / limit
            return f"{scaled:.0f}{unit}" if abs(scaled) >= 99.95 else f"{scaled:.3g}{unit}"
    if size < 1e-3:
        mantissa, _, power = f"{value:.2g}".partition("e")
        return f"{mantissa}e{int(power)}" if power else mantissa
    return f"{value:.4g}"


def seconds(value: float) -> str:
    """Seconds as text: `85 ms`, `1.24 s`."""
    return f"{value * 1000:.3g} ms" if abs(value) < 0.9995 else f"{value:.3g} s"


_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def bytes_(value: float, like: float | None = None) -> str:
    """Bytes as text: `1.2 GiB`; in the unit that suits `like` if it is given."""
    for size, unit in _BYTES:
        if abs(value if like is None else like) >= size:
            scaled = value / size
            return f"{scaled:.0f} {unit}" if abs(scaled) >= 99.95 else f"{scaled:.3g} {unit}"
    return f"{value:.0f} B"


def _with(unit: str) -> Callable[[float], str]:
    return lambda value: f"{plain(value)} {unit}"


class Metric(NamedTuple):
    """A metric that a chart can show."""

    name: str
    """The metric's name in the history."""
    label: str
    words: Callable[[float], str] = plain
    per: str = "rank"
    """The owner of each value: rank, host or GPU."""
    beside: str | None = None
    """Another metric to draw in the same chart."""
    binary: bool = False
    """Whether it counts bytes, whose round values are multiples of powers of 1024."""
    whole: float | None = None
    """The maximum, if it has one: the axis goes from 0 to it, so that small changes look small."""

    def ticks(self, values: Sequence[float]) -> list[str]:
        """The labels of an axis; bytes share one unit, except for values too small for it."""
        if not self.binary:
            return [self.words(value) for value in values]
        most = max(map(abs, values), default=0.0)
        return ["0" if value == 0 else bytes_(value, most if abs(value) * 1024 > most else None) for value in values]


METRICS = (
    Metric("loss", "loss", beside="val_loss"),
    Metric("tokens_per_s", "throughput", _with("tok/s")),
    Metric("samples_per_s", "throughput", _with("samples/s")),
    Metric("steps_per_s", "throughput", _with("steps/s")),
    Metric("step_time", "step time", seconds),
    Metric("gpu.use", "GPU use", _with("%"), "GPU", whole=100.0),
    Metric("gpu.power", "GPU power", _with("W"), "GPU"),
    Metric("grad_norm", "gradient norm"),
    Metric("lr", "learning rate"),
    Metric("gpu.mem_used", "GPU memory", bytes_, "GPU", binary=True),
    Metric("gpu.temp", "GPU temperature", _with("°C"), "GPU"),
    Metric("cpu", "CPU", _with("%"), "host", whole=100.0),
    Metric("net_tx", "network sent", lambda value: bytes_(value) + "/s", "host", binary=True),
    Metric("net_rx", "network received", lambda value: bytes_(value) + "/s", "host", binary=True),
    Metric("mem_used", "memory", bytes_, "host", binary=True),
    Metric("forward_time", "forward time", seconds),
    Metric("val_loss", "validation loss"),
)
"""The metrics that every job can have, the most important first."""


def charted(history: MetricHistory) -> list[Metric]:
    """The metrics of a run that have a chart of their own."""
    metrics = available(history)
    beside = {one.beside for one in metrics if one.beside}
    return [one for one in metrics if one.name not in beside]


def available(history: MetricHistory) -> list[Metric]:
    """The metrics of a run; those defined by its job come last."""
    known = [metric for metric in METRICS if metric.name in history.all]
    names = {metric.name for metric in METRICS}
    own = sorted(name for name in tuple(history.all) if name not in names)
    return known + [Metric(name, clean(name)[:40]) for name in own]
