"""The last minutes of one host or GPU as curves side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.strip import Strip

from runner.formatting import duration
from runner.hosts.load import GpuLoad, Load
from runner.render.top import rate
from runner.runs.watch import HostNow
from tui.theme import RAMP
from tui.top import meters
from tui.top.feed import KEEP, LoadHistory, step_of
from tui.widgets.drawn import Drawn, Piece, line

_GAP = 3
_CURVES = 4
_LEAST = 22
"""The least cells of a curve; with less room, fewer curves are shown."""


class Curve(NamedTuple):
    """A number over time, with its present value."""

    title: str
    values: Sequence[float | None]
    now: str
    top: float
    """The upper end of its scale."""
    end: str
    """The upper end in words; empty if it is obvious."""


class CurvesPane(Drawn):
    """Use, memory, and network of a host; use, memory, power and temperature of a GPU."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"top--quiet", "top--strong"}
    DEFAULT_CSS = """
    CurvesPane {
        & > .top--quiet { color: $muted; }
        & > .top--strong { text-style: bold; }
    }
    """

    def __init__(self, history: LoadHistory, id: str | None = None) -> None:
        super().__init__(id=id)
        self.only = ""
        """The key of the host or GPU, empty while all are shown."""
        self._history = history
        self._host: HostNow | None = None

    def show(self, hosts: Sequence[HostNow]) -> None:
        """Show the present figures."""
        name = self.only.partition("/")[0]
        self._host = next((host for host in hosts if host.name == name), None)
        if self.display:
            self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Draw as many curves as fit."""
        host = self._host
        if host is None or host.load is None or height < 2:
            return []
        gpu = self.only.partition("/")[2]
        count = max(1, min(_CURVES, (width + _GAP) // (_LEAST + _GAP)))
        rows = 2 if count < _CURVES and height >= 8 else 1
        count = _CURVES // 2 if rows == 2 else count
        each = min(KEEP, (width - _GAP * (count - 1)) // count)
        curves = self._of_gpu(host.name, host.load, gpu, each) if gpu else self._of_host(host.name, host.load, each)
        lines: list[Strip] = []
        for first in range(0, min(len(curves), count * rows), count):
            lines += self._beside(curves[first : first + count], each, height // rows)
        self.set_title(f"Last {duration(each * step_of(each))}")
        return lines

    def _beside(self, curves: Sequence[Curve], each: int, height: int) -> list[Strip]:
        blocks = [self._block(curve, each, height) for curve in curves]
        return [line([piece for block in blocks for piece in (*block[y], " " * _GAP)][:-1]) for y in range(height)]

    def _block(self, curve: Curve, width: int, height: int) -> list[list[Piece]]:
        """A line of words over the columns; every line is `width` cells wide."""
        room = width - len(curve.title) - len(curve.now) - 1
        end = f"  {curve.end}" if room >= len(curve.end) + 4 else ""
        lines: list[list[Piece]] = [
            [
                (curve.title, self.component("top--quiet")),
                " ",
                (curve.now, self.component("top--strong")),
                (f"{end:<{max(0, room)}}", self.component("top--quiet")),
            ]
        ]
        rows = max(1, height - 1)
        for y, text in enumerate(meters.area(curve.values, width, rows, max(curve.top, 1e-9))):
            lines.append([(text, self.component(f"ramp--{(rows - 1 - y) * RAMP // rows}"))])
        return lines

    def _of_host(self, host: str, load: Load, width: int) -> list[Curve]:
        cpu, memory, into, out = (
            self._history.columns(host, None, name, width) for name in ("use", "memory", "net in", "net out")
        )
        most = max([1e6, *(value for value in (*into, *out) if value is not None)])
        peak = f"peak {rate(most)}"
        return [
            Curve("cpu", cpu, _unit(load.cpu, "%"), 100.0, f"of {load.cpus} CPUs" if load.cpus else ""),
            Curve(
                "memory", memory, meters.size(load.mem_used).strip(), 100.0, f"of {meters.size(load.mem_total).strip()}"
            ),
            *(
                Curve(title, past, meters.NONE if now is None else rate(now), most, "" if now is None else peak)
                for title, past, now in (("net in", into, load.net_rx), ("net out", out, load.net_tx))
            ),
        ]

    def _of_gpu(self, host: str, load: Load, index: str, width: int) -> list[Curve]:
        gpu = next((gpu for gpu in load.gpus if f"{gpu.index}" == index), GpuLoad(int(index)))
        use, memory, power, heat = (
            self._history.columns(host, gpu.index, name, width) for name in ("use", "memory", "power", "temperature")
        )
        watts = gpu.power_limit or max([100.0, *(value for value in power if value is not None)])
        return [
            Curve("use", use, _unit(gpu.use, "%"), 100.0, ""),
            Curve(
                "memory", memory, meters.size(gpu.mem_used).strip(), 100.0, f"of {meters.size(gpu.mem_total).strip()}"
            ),
            Curve("power", power, _unit(gpu.power, "W"), watts, f"of {watts:.0f} W"),
            Curve("temperature", heat, _unit(gpu.temp, "°C"), 100.0, "of 100 °C"),
        ]


def _unit(value: float | None, unit: str) -> str:
    return meters.NONE if value is None else f"{value:.0f} {unit}"
