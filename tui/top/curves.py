"""The last minutes of one host or GPU as curves side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.strip import Strip

from runner.run.load import GpuLoad, Load
from runner.run.watch import HostNow
from runner.show.numbers import duration
from tui.series import Column
from tui.theme import RAMP, RAMP_CLASSES
from tui.top import meters
from tui.top.feed import KEEP, History, percent
from tui.widgets.drawn import Drawn, Piece, line
from tui.widgets.plot import Canvas, Scale

_GAP = 3
_LEAST = 22
"""Cells of a curve below which fewer are shown."""


class Curve(NamedTuple):
    """A number over time, with what it is now."""

    title: str
    values: Sequence[float | None]
    now: str
    top: float
    """The upper end of its scale."""
    end: str
    """The same in words."""


class CurvesPane(Drawn):
    """Use, memory, and network of a host; use, memory, power and temperature of a GPU."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"top--quiet", "top--rest", "top--strong", *RAMP_CLASSES}
    DEFAULT_CSS = """
    CurvesPane {
        & > .top--quiet { color: $muted; }
        & > .top--rest { color: $rule; }
        & > .top--strong { text-style: bold; }
    }
    """

    def __init__(self, history: History, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.only = ""
        """The key of the host or GPU, empty while all are shown."""
        self._history = history
        self._host: HostNow | None = None

    def show(self, hosts: Sequence[HostNow]) -> None:
        """Show another moment."""
        name = self.only.partition("/")[0]
        self._host = next((host for host in hosts if host.name == name), None)
        if self.display:
            self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """As many curves as there is room for."""
        host = self._host
        if host is None or host.load is None or height < 3:
            return []
        cells = KEEP if width > KEEP else width
        gpu = self.only.partition("/")[2]
        curves = self._of_gpu(host.name, host.load, gpu, cells) if gpu else self._of_host(host.name, host.load, cells)
        count = max(1, min(len(curves), (width + _GAP) // (_LEAST + _GAP)))
        rows = 2 if count < len(curves) and height >= 8 else 1
        lines: list[Strip] = []
        for first in range(0, min(len(curves), count * rows), count):
            lines += self._beside(curves[first : first + count], width, height // rows)
        self.set_title(f"Last {duration(2.0 * ((width - _GAP * (count - 1)) // count))}")
        return lines

    def _beside(self, curves: Sequence[Curve], width: int, height: int) -> list[Strip]:
        each = (width - _GAP * (len(curves) - 1)) // len(curves)
        blocks = [self._block(curve, each, height) for curve in curves]
        return [line([piece for block in blocks for piece in (*block[y], " " * _GAP)][:-1]) for y in range(height)]

    def _block(self, curve: Curve, width: int, height: int) -> list[list[Piece]]:
        """A line of words over the dots; every line is `width` cells wide."""
        room = width - len(curve.title) - len(curve.now) - 1
        end = f"  of {curve.end}" if room >= len(curve.end) + 7 else ""
        words: list[Piece] = [
            (curve.title, self.component("top--quiet")),
            " ",
            (curve.now, self.component("top--strong")),
            (f"{end:<{max(0, room)}}", self.component("top--rest")),
        ]
        canvas = Canvas(width, max(1, height - 1))
        newest = list(curve.values)[-width * 2 :]
        dots = [None] * (width * 2 - len(newest)) + newest
        columns = [None if value is None else Column(0.0, value, value) for value in dots]
        canvas.band(0, columns, Scale(0.0, max(curve.top, 1e-9), 1.0, log=False))
        lines: list[list[Piece]] = [words]
        for y in range(canvas.height):
            step = min(RAMP - 1, (canvas.height - 1 - y) * RAMP // canvas.height)
            lines.append([(canvas.text(y), self.component(f"ramp--{step}"))])
        return lines

    def _of_host(self, host: str, load: Load, count: int) -> list[Curve]:
        into, out = (self._history.last(host, None, name, 2 * count) for name in ("net in", "net out"))
        most = max([1e6, *(value for value in (*into, *out) if value is not None)])
        cpus = f"{load.cpus} CPUs" if load.cpus else "100 %"
        return [
            Curve("cpu", self._history.last(host, None, "use", 2 * count), _percent(load.cpu), 100.0, cpus),
            Curve(
                "memory",
                self._history.last(host, None, "memory", 2 * count),
                meters.size(load.mem_used).strip(),
                100.0,
                meters.size(load.mem_total).strip(),
            ),
            Curve("net in", into, _rate(load.net_rx), most, _rate(most)),
            Curve("net out", out, _rate(load.net_tx), most, _rate(most)),
        ]

    def _of_gpu(self, host: str, load: Load, index: str, count: int) -> list[Curve]:
        gpu = next((gpu for gpu in load.gpus if f"{gpu.index}" == index), GpuLoad(int(index)))
        last = {
            name: self._history.last(host, gpu.index, name, 2 * count)
            for name in ("use", "memory", "power", "temperature")
        }
        watts = gpu.power_limit or max([100.0, *(value for value in last["power"] if value is not None)])
        return [
            Curve("use", last["use"], _percent(gpu.use), 100.0, "100 %"),
            Curve(
                "memory",
                last["memory"],
                f"{meters.size(gpu.mem_used).strip()} {_percent(percent(gpu.mem_used, gpu.mem_total))}",
                100.0,
                meters.size(gpu.mem_total).strip(),
            ),
            Curve("power", last["power"], _unit(gpu.power, "W"), watts, f"{watts:.0f} W"),
            Curve("temperature", last["temperature"], _unit(gpu.temp, "°C"), 100.0, "100 °C"),
        ]


def _percent(value: float | None) -> str:
    return _unit(value, "%")


def _unit(value: float | None, unit: str) -> str:
    return meters.NONE if value is None else f"{value:.0f} {unit}"


def _rate(value: float | None) -> str:
    return meters.NONE if value is None else f"{meters.rate(value).strip()}B/s"
