"""The most important processes of all hosts, of one, or of one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from textual.binding import BindingType
from textual.strip import Strip

from runner.hosts.load import ProcessLoad
from runner.runs.watch import HostNow
from runner.text import clean
from tui.top import meters
from tui.top.keys import ROW_KEYS
from tui.widgets.drawn import Piece, line
from tui.widgets.row_list import RowList, Sort


@dataclass(frozen=True)
class Running:
    """A process, and its host."""

    host: str
    process: ProcessLoad
    gpu_total: float
    """Total memory of the GPUs that it uses; 0 without any."""


class _ProcessColumn(NamedTuple):
    name: str
    width: int
    align: str
    rank: int
    """With too little room, the columns with the highest rank are left out first."""


class ProcessPane(RowList[Running]):
    """The table of processes."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"top--quiet", "top--rest"}
    DEFAULT_CSS = """
    ProcessPane {
        & > .top--quiet { color: $muted; }
        & > .top--rest { color: $rule; }
    }
    """
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

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.only = ""
        """The key of the host or GPU whose processes are shown; empty for all."""
        self._all: list[Running] = []
        self._columns: list[_ProcessColumn] = []

    def show(self, hosts: tuple[HostNow, ...]) -> None:
        """Show the present processes."""
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
            none = line([("  none reported yet", self.component("top--quiet"))])
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
                "gpu", min(12, max([3, *(len(_indices(one.process)) for one in items)])) if gpus else 0, "<", 1
            ),
            _ProcessColumn("gpu mem", 7 if gpus else 0, ">", 3),
            _ProcessColumn("run", min(20, max(3, runs)) if runs else 0, "<", 2),
        ]
        columns = [column for column in columns if column.width]
        while len(columns) > 1 and sum(column.width + 2 for column in columns) > room - 14:
            columns.remove(max(columns, key=lambda column: column.rank))
        return columns

    def head(self, width: int) -> list[Piece]:
        """The titles."""
        titles = (self.title(f"{column.name:{column.align}{column.width}}") for column in self._columns)
        return [*(piece for title in titles for piece in (title, "  ")), self.title("command")]

    def row(self, item: Running, width: int) -> list[Piece]:
        """One process."""
        pieces: list[Piece] = []
        left = width
        for column in self._columns:
            text, css = _cell(item, column.name)
            shown = meters.fit(text, column.width) if column.align == "<" else f"{text:>{column.width}}"
            pieces += [(shown, self.component(css)) if css else shown, "  "]
            left -= column.width + 2
        command = item.process.command or "(not visible from here)"
        quiet = self.component("top--quiet")
        return [*pieces, (meters.fit(command, max(0, left)), quiet)]


def _weight(process: ProcessLoad) -> tuple[bool, bool, float]:
    """The order: those on GPUs, those of runs, then busy ones; the first two groups keep their places."""
    kept = bool(process.gpus or process.run)
    return bool(process.gpus), bool(process.run), 0.0 if kept else process.cpu or 0.0


def _cell(one: Running, name: str) -> tuple[str, str]:
    process = one.process
    if name == "cpu":
        if process.cpu is None:
            return meters.NONE, "top--quiet"
        return f"{process.cpu:.0f} %", meters.ramp(process.cpu / 100)
    if name == "gpu mem":
        if process.gpu_memory is None:
            return "", ""
        return meters.size(process.gpu_memory), meters.ramp(process.gpu_memory / (one.gpu_total or process.gpu_memory))
    texts = {
        "host": one.host,
        "pid": f"{process.pid}",
        "user": process.user,
        "memory": meters.size(process.rss),
        "gpu": _indices(process),
        "run": process.run,
    }
    return texts[name], "state--running" if name == "run" else ""


def _indices(process: ProcessLoad) -> str:
    """`0-3`, `0,2`."""
    gpus = sorted(process.gpus)
    if len(gpus) > 2 and gpus == list(range(gpus[0], gpus[-1] + 1)):
        return f"{gpus[0]}-{gpus[-1]}"
    return ",".join(map(str, gpus))


def _memory_of(host: HostNow, process: ProcessLoad) -> float:
    gpus = host.load.gpus if host.load else ()
    return sum(gpu.mem_total or 0.0 for gpu in gpus if gpu.index in process.gpus)
