"""The metrics that charts can show: their names, and how their values are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from runner.text import clean
from tui.run.series import MetricHistory


def plain(value: float) -> str:
    """At most five significant characters: `0.0123`, `1.832`, `41.2k`, `3e-05`."""
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
    """`85 ms`, `1.24 s`."""
    return f"{value * 1000:.3g} ms" if abs(value) < 0.9995 else f"{value:.3g} s"


_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def bytes_(value: float, like: float | None = None) -> str:
    """`1.2 GiB`; in the unit of `like` if that is given."""
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
    """Its name in the history."""
    label: str
    words: Callable[[float], str] = plain
    per: str = "rank"
    """What has one value each: rank, host or GPU."""
    beside: str | None = None
    """Another metric to draw in the same chart."""
    binary: bool = False
    """Whether it counts bytes, which are round in powers of 1024."""
    whole: float | None = None
    """What it is a share of: its axis goes from 0 to this, so that small changes look small."""

    def ticks(self, values: Sequence[float]) -> list[str]:
        """The labels of an axis; bytes share one unit, except values too small for it."""
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
    """The metrics that a run has; those that only its job defines come last."""
    known = [metric for metric in METRICS if metric.name in history.all]
    names = {metric.name for metric in METRICS}
    own = sorted(name for name in tuple(history.all) if name not in names)
    return known + [Metric(name, clean(name)[:40]) for name in own]
