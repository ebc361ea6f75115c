"""The table of hosts: the state and the load of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from rich.style import Style
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from disttui.runner.formatting import duration, number
from disttui.runner.runs.condition import host_word
from disttui.runner.runs.state import HostState
from disttui.runner.text import clean
from disttui.tui.keys import MOVE, OPEN, VIEW, bind
from disttui.tui.load import meters
from disttui.tui.run.feed import Snapshot
from disttui.tui.run.ranks import blamed, short_names
from disttui.tui.run.series import bytes_
from disttui.tui.theme import FULL, look
from disttui.tui.widgets.drawn import Piece
from disttui.tui.widgets.row_list import RowList, Sort

KEEP = 6.0
"""Seconds after which the last telemetry of a host is stale."""
TROUBLE = ("failed", "unseen", "slow", "waiting")
"""Kinds of states that come first in the order "trouble", and in the title of the ranks."""


class Cell(NamedTuple):
    """A value of the table, and its share of the maximum (0 to 1) if it has one."""

    text: str
    share: float | None = None


class HostStatusRow(NamedTuple):
    """A host, and its state as text."""

    host: HostState
    name: str
    """The host's name, without the domain that all hosts share."""
    word: str
    """A word that `disttui.tui.theme.look` knows."""


class HostColumns(NamedTuple):
    """The columns that fit, as in COLUMNS."""

    name: int
    """Width of the hosts' names, in cells."""
    word: int
    """Width of the hosts' states with the glyph, in cells."""
    shown: list[tuple[str, int, int]]


def _trouble(row: HostStatusRow) -> int:
    kind = look(row.word).kind
    return -(TROUBLE.index(kind) if kind in TROUBLE else len(TROUBLE))


def _load(row: HostStatusRow) -> tuple[float, float]:
    """Sort key: the mean GPU utilisation (0 to 1), then the CPU utilisation (%)."""
    telemetry = row.host.telemetry
    cpu = telemetry.get("cpu", 0.0) if telemetry else 0.0
    gpu = _gpu_values(telemetry.get("gpus") if telemetry else None).get("gpu")
    return (gpu.share or 0.0) if gpu else 0.0, cpu


def _gpu_values(gpus: object) -> dict[str, Cell]:
    known = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    sums = {
        name: [value for gpu in known if (value := number(gpu.get(name))) is not None]
        for name in ("use", "mem_used", "mem_total", "power")
    }
    values = {}
    if sums["use"]:
        mean = sum(sums["use"]) / len(sums["use"])
        values["gpu"] = Cell(f"{mean:.0f} %", mean / 100)
    if sums["mem_used"]:
        used, total = sum(sums["mem_used"]), sum(sums["mem_total"])
        values["gpu mem"] = Cell(bytes_(used), used / total if total else None)
    if sums["power"]:
        values["power"] = Cell(f"{sum(sums['power']):.0f} W")
    return values


class HostsPane(RowList[HostStatusRow]):
    """One row per host; columns that do not fit are omitted, the least important first."""

    BORDER_TITLE = "Hosts"
    SORTS: ClassVar[Sequence[Sort[HostStatusRow]]] = (
        Sort("profile", lambda row: 0, ""),
        Sort("trouble", _trouble, "trouble first"),
        Sort("load", _load, "busiest first"),
    )
    QUIET_CURSOR = True
    CLINGS = True
    DEFAULT_CSS = """
    HostsPane > .rows--cursor { background: $selected; color: $selected-text; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("hosts.open", "enter", "open", "its ranks", "show the log of its ranks", group=OPEN),
        bind("hosts.top", "t", "top", "top", "show the load of this host", group=OPEN),
        bind("hosts.sort", "o", "sort(1)", "order", "by trouble, by load, or as in the profile", group=VIEW),
        bind("hosts.down", "j,down", "move(1)", "down", "one row down", group=MOVE, show=False),
        bind("hosts.up", "k,up", "move(-1)", "up", "one row up", group=MOVE, show=False),
        bind("hosts.page_down", "ctrl+d,pagedown", "page(1)", "page down", group=MOVE, show=False),
        bind("hosts.page_up", "ctrl+u,pageup", "page(-1)", "page up", group=MOVE, show=False),
        bind("hosts.first", "g", "edge(False)", "first", "first row", group=MOVE, show=False),
        bind("hosts.last", "G", "edge(True)", "last", "last row", group=MOVE, show=False),
    ]
    COLUMNS: ClassVar[tuple[tuple[str, int, int], ...]] = (
        ("ranks", 8, 6), ("cpu", 7, 2), ("mem", 10, 3), ("gpu", 7, 1), ("gpu mem", 10, 5), ("power", 8, 7),
        ("rx/s", 10, 8), ("tx/s", 10, 9), ("seen", 10, 4),
    )  # fmt: skip
    """Name, width in cells, and rank: with too little room, the column with the highest rank is omitted first."""

    class TopWanted(Message):
        """Requests the view of a host's load."""

        def __init__(self, node: int) -> None:
            super().__init__()
            self.node = node

    _snapshot: Snapshot | None = None
    _columns = HostColumns(4, 9, [])

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot; the cursor stays on its host."""
        first = self._snapshot is None
        self._snapshot = snapshot
        self.settle()
        if first:
            self.refresh(layout=True)

    @property
    def node(self) -> int | None:
        """Node rank of the host under the cursor."""
        return self.here.host.node if self.here is not None else None

    def key_of(self, item: HostStatusRow) -> str:
        return f"{item.host.node}"

    def ordered(self) -> list[HostStatusRow]:
        """All hosts in the chosen order; equal ones as in the profile."""
        if self._snapshot is None:
            return []
        words, hosts = _words(self._snapshot), self._snapshot.state.hosts
        names = short_names([clean(host.name) for host in hosts])
        return self.by_choice([HostStatusRow(host, names[host.node], words[host.node]) for host in hosts])

    def redraw(self) -> None:
        """Redraw, and show in the title which rows are visible."""
        page, count = self.size.height - 1, len(self.items)
        # The height is 0 until the first layout.
        shown = f"{self.top + 1}-{min(count, self.top + page)} of {count}" if 0 < page < count else ""
        self.set_title("Hosts", self.sort_words, shown)
        super().redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Choose the columns, then draw the rows."""
        if not self.items:
            return []
        hosts = [row.host for row in self.items]
        names = max([4, *(len(row.name) for row in self.items)])
        wide = max([9, *(len(row.word) + 2 for row in self.items)])
        names = min(names, max(4, width - wide - 8), 24)
        gpus = any(host.telemetry and host.telemetry.get("gpus") for host in hosts)
        unseen = any(host.link == "not seen" for host in hosts)
        self._columns = HostColumns(names, wide, self._fitting(width - names - wide - 2, gpus=gpus, unseen=unseen))
        return super().draw(width, height)

    def head(self, width: int) -> list[Piece]:
        names, wide, shown = self._columns
        heads = "".join(f"{name:>{cells}}" for name, cells, _ in shown)
        return [(f"{'host':<{names}} {'':<{wide}} {heads}", self.component("muted"))]

    def row(self, item: HostStatusRow, width: int) -> list[Piece]:
        if self._snapshot is None:
            return []
        names, wide, shown = self._columns
        host, seen, quiet = item.host, look(item.word), self.component("muted")
        pieces: list[Piece] = [f"{meters.fit(item.name, names)} "]
        pieces.append((f"{seen.glyph} {item.word:<{wide - 2}} ", self.component(seen.css)))
        values, stale = self._values(host, self._snapshot), is_stale(host, self._snapshot)
        for name, cells, _ in shown:
            cell = values.get(name, Cell("–"))
            old = stale and name not in ("ranks", "seen")
            pieces.append((f"{cell.text:>{cells}}", quiet if old else self._style(cell, quiet)))
        return pieces

    def _fitting(self, room: int, *, gpus: bool, unseen: bool) -> list[tuple[str, int, int]]:
        columns = [one for one in self.COLUMNS if gpus or one[0] not in ("gpu", "gpu mem", "power")]
        columns = [one if one[0] != "seen" or not unseen else ("seen", one[1], 0) for one in columns]
        while columns and sum(cells for _, cells, _ in columns) > room:
            columns.remove(max(columns, key=lambda one: one[2]))
        return columns

    def _style(self, cell: Cell, quiet: Style) -> Style:
        if cell.text == "–":
            return quiet
        if cell.share is None:
            return Style.null()
        return self.component(f"ramp--{max(0, min(FULL, int(cell.share * (FULL + 1))))}")

    def _values(self, host: HostState, snapshot: Snapshot) -> dict[str, Cell]:
        first = sum(one.nproc for one in snapshot.state.hosts[: host.node])
        values = {"ranks": Cell(f"{first}-{first + host.nproc - 1}" if host.nproc > 1 else f"{first}")}
        last = snapshot.seen.get(host.node)
        if last is not None:
            age = snapshot.now - last
            values["seen"] = Cell("now" if host.link != "not seen" and age <= KEEP else f"{duration(max(0, age))} ago")
        telemetry: Mapping[str, object] = host.telemetry or {}
        cpu, used, total = (number(telemetry.get(name)) for name in ("cpu", "mem_used", "mem_total"))
        if cpu is not None:
            values["cpu"] = Cell(f"{cpu:.0f} %", cpu / 100)
        if used is not None:
            values["mem"] = Cell(bytes_(used), used / total if total else None)
        for name, source in (("rx/s", "net_rx"), ("tx/s", "net_tx")):
            moved = number(telemetry.get(source))
            if moved is not None:
                values[name] = Cell(bytes_(moved))
        return values | _gpu_values(telemetry.get("gpus"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer `top` only for a live run."""
        return action != "top" or (self._snapshot is not None and self._snapshot.playback is None)

    def action_top(self) -> None:
        if self.node is not None:
            self.post_message(self.TopWanted(self.node))

    def sort_at(self, x: int) -> None:
        """Switch to the next order, for a click on any heading."""
        self.action_sort(1)


def _words(snapshot: Snapshot) -> dict[int, str]:
    """Node rank → the state of the host; in a failed run, "failed" only for the host where the failure began.

    In a stall, hosts with ranks that others wait for are "blocking", the others "waiting".
    """
    state = snapshot.state
    words = {host.node: host_word(host, state) for host in state.hosts}
    if state.hosts[0].story.stall is not None and (culprits := blamed(snapshot).culprits):
        first = 0
        for host in state.hosts:
            if words[host.node] == "running":
                words[host.node] = "waiting" if culprits.isdisjoint(range(first, first + host.nproc)) else "blocking"
            first += host.nproc
    if "failed" in words.values() and (began := blamed(snapshot).node) is not None:
        words |= {node: "interrupted" for node, word in words.items() if word == "failed" and node != began}
    return words


def is_stale(host: HostState, snapshot: Snapshot) -> bool:
    """Whether a host has no telemetry from the KEEP seconds before the time shown."""
    if host.telemetry is None:
        return True
    ahead = snapshot.state.hosts[0].story.offsets.get(host.node, 0.0)
    return snapshot.now - (host.telemetry["t"] - ahead) > KEEP
