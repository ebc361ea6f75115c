"""The panes below the hosts: the last minutes of one host or GPU as curves, and the processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from textual.binding import BindingType
from textual.strip import Strip

from disttui.runner.formatting import duration, ranges
from disttui.runner.hosts.load import GpuLoad, Load, ProcessLoad
from disttui.runner.render.top import rate
from disttui.runner.runs.watch import HostNow
from disttui.runner.text import clean
from disttui.tui.keys import ROW_KEYS
from disttui.tui.load import meters
from disttui.tui.load.feed import KEEP, LoadHistory, step_of
from disttui.tui.theme import RAMP
from disttui.tui.widgets.drawn import Drawn, Piece, line
from disttui.tui.widgets.row_list import RowList, Sort

_GAP = 3
_CURVES = 4
_LEAST = 22
"""Minimum cells of a curve; with less room, fewer curves are side by side."""


class Curve(NamedTuple):
    """A figure over time, with its current value."""

    title: str
    values: Sequence[float | None]
    now: str
    top: float
    """The upper end of its scale."""
    end: str
    """The upper end as text; empty if it is obvious."""


class CurvesPane(Drawn):
    """Curves of a host's CPU, memory and network, or of a GPU's use, memory, power and temperature."""

    def __init__(self, history: LoadHistory, id: str | None = None) -> None:
        super().__init__(id=id)
        self.only = ""
        """The key of the host or GPU that is shown alone; empty for all."""
        self._history = history
        self._host: HostNow | None = None

    def show(self, hosts: Sequence[HostNow]) -> None:
        name = self.only.partition("/")[0]
        self._host = next((host for host in hosts if host.name == name), None)
        if self.display:
            self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
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
        """A line of text above the columns of a curve; every line is `width` cells wide."""
        room = width - len(curve.title) - len(curve.now) - 1
        end = f"  {curve.end}" if room >= len(curve.end) + 4 else ""
        lines: list[list[Piece]] = [
            [
                (curve.title, self.component("muted")),
                " ",
                (curve.now, self.component("strong")),
                (f"{end:<{max(0, room)}}", self.component("muted")),
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
        return [
            Curve("cpu", cpu, _unit(load.cpu, "%"), 100.0, f"of {load.cpus} CPUs" if load.cpus else ""),
            Curve(
                "memory", memory, meters.size(load.mem_used).strip(), 100.0, f"of {meters.size(load.mem_total).strip()}"
            ),
            *(
                Curve(title, past, meters.NONE if now is None else rate(now), most, "" if now is None else _peak(past))
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


def _peak(past: Iterable[float | None]) -> str:
    known = [value for value in past if value is not None]
    return f"peak {rate(max(known))}" if known else ""


def _unit(value: float | None, unit: str) -> str:
    return meters.NONE if value is None else f"{value:.0f} {unit}"


@dataclass(frozen=True)
class Running:
    """A process, and its host."""

    host: str
    process: ProcessLoad
    gpu_total: float
    """Total memory of the GPUs that it uses (bytes); 0 without any."""


class _ProcessColumn(NamedTuple):
    name: str
    width: int
    align: str
    rank: int
    """With too little room, the column with the highest rank is omitted first."""


class ProcessPane(RowList[Running]):
    """The table of processes."""

    BINDINGS: ClassVar[list[BindingType]] = [*ROW_KEYS]
    SORTS: ClassVar[Sequence[Sort[Running]]] = (
        Sort("gpu", lambda one: _weight(one.process)),
        Sort("cpu", lambda one: one.process.cpu or 0.0),
        Sort("memory", lambda one: one.process.rss or 0.0),
        Sort("gpu mem", lambda one: one.process.gpu_memory or 0.0),
        Sort("run", lambda one: (one.process.run, one.host)),
        Sort("user", lambda one: one.process.user),
        Sort("pid", lambda one: one.process.pid),
    )

    only = ""
    """The key of the host or GPU whose processes are shown; empty for all."""
    _all: Sequence[Running] = ()
    _columns: Sequence[_ProcessColumn] = ()

    def show(self, hosts: tuple[HostNow, ...]) -> None:
        self._all = [
            Running(clean(host.name), process, _memory_of(host, process))
            for host in hosts
            if host.load is not None and host.state == "seen"
            for process in sorted(host.load.processes, key=lambda process: (process.gpus, process.pid))
        ]
        self.settle()

    def key_of(self, item: Running) -> str:
        """The key of a row: host and pid."""
        return f"{item.host}/{item.process.pid}"

    def ordered(self) -> list[Running]:
        """The processes of the chosen host or GPU that pass the filter."""
        return self.by_choice([one for one in self._all if self._belongs(one) and self._wanted(one.process, one.host)])

    def _belongs(self, one: Running) -> bool:
        name, _, gpu = self.only.partition("/")
        return not name or (one.host == name and (not gpu or int(gpu) in one.process.gpus))

    def _wanted(self, process: ProcessLoad, host: str) -> bool:
        return self.fits(host, f"{process.pid}", process.user, process.run, process.command)

    def settle(self) -> None:
        """Sort and filter again, and show the number of processes."""
        super().settle()
        where = clean(self.only.replace("/", " GPU "))
        self.set_title("Processes", where, self.filter_words, self.sort_words if self.sorted_by or self.turned else "")

    def draw(self, width: int, height: int) -> list[Strip]:
        """Choose the columns, then draw the rows."""
        self._columns = self._fitting(width - 2)
        if not self.items:
            none = line([("  none reported yet", self.component("muted"))])
            return [self.none_left() if self.words else none]
        return super().draw(width, height)

    def _fitting(self, room: int) -> list[_ProcessColumn]:
        items = self.items
        hosts = {one.host for one in items}
        gpus = any(one.process.gpus for one in items)
        runs = max([0, *(len(one.process.run) for one in items)])
        columns = [
            _ProcessColumn("host", min(20, max([4, *map(len, hosts)])) if len(hosts) > 1 else 0, "<", 1),
            _ProcessColumn("pid", 7, ">", 4),
            _ProcessColumn("user", min(10, max([4, *(len(one.process.user) for one in items)])), "<", 1),
            _ProcessColumn("cpu", 6, ">", 0),
            _ProcessColumn("memory", 6, ">", 2),
            _ProcessColumn(
                "gpu", min(12, max([3, *(len(ranges(one.process.gpus, ",")) for one in items)])) if gpus else 0, "<", 1
            ),
            _ProcessColumn("gpu mem", 7 if gpus else 0, ">", 3),
            _ProcessColumn("run", min(20, max(3, runs)) if runs else 0, "<", 2),
        ]
        columns = [column for column in columns if column.width]
        while len(columns) > 1 and sum(column.width + 2 for column in columns) > room - 14:
            columns.remove(max(columns, key=lambda column: column.rank))
        return columns

    def head(self, width: int) -> list[Piece]:
        titles = (self.title(f"{column.name:{column.align}{column.width}}") for column in self._columns)
        return [*(piece for title in titles for piece in (title, "  ")), self.title("command")]

    def row(self, item: Running, width: int) -> list[Piece]:
        pieces: list[Piece] = []
        left = width
        for column in self._columns:
            text, css = _cell(item, column.name)
            shown = meters.fit(text, column.width) if column.align == "<" else f"{text:>{column.width}}"
            pieces += [(shown, self.component(css)) if css else shown, "  "]
            left -= column.width + 2
        command = item.process.command or "(not visible)"
        quiet = self.component("muted")
        return [*pieces, (meters.fit(command, max(0, left)), quiet)]


def _weight(process: ProcessLoad) -> tuple[bool, bool, float]:
    """Sort key: processes on GPUs, then those of runs, then busy ones; the first two groups keep their order."""
    kept = bool(process.gpus or process.run)
    return bool(process.gpus), bool(process.run), 0.0 if kept else process.cpu or 0.0


def _cell(one: Running, name: str) -> tuple[str, str]:
    process = one.process
    if name == "cpu":
        if process.cpu is None:
            return meters.NONE, "muted"
        return f"{process.cpu:.0f} %", meters.ramp(process.cpu / 100)
    if name == "gpu mem":
        if process.gpu_memory is None:
            return "", ""
        return meters.size(process.gpu_memory), meters.ramp(
            process.gpu_memory / (one.gpu_total or process.gpu_memory or 1)
        )
    texts = {
        "host": one.host,
        "pid": f"{process.pid}",
        "user": process.user,
        "memory": meters.size(process.rss),
        "gpu": ranges(process.gpus, ","),
        "run": process.run,
    }
    return texts[name], "state--running" if name == "run" else ""


def _memory_of(host: HostNow, process: ProcessLoad) -> float:
    gpus = host.load.gpus if host.load else ()
    return sum(gpu.mem_total or 0.0 for gpu in gpus if gpu.index in process.gpus)
