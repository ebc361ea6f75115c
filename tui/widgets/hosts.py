"""The table of hosts: what each does, and how much of it is used."""

from __future__ import annotations

import time
from typing import ClassVar, NamedTuple

from rich.style import Style
from textual.strip import Strip

from runner.run.state import HostState
from runner.show.numbers import number
from runner.show.status import host_word
from runner.text import clean
from tui.feed import Snapshot
from tui.theme import RAMP, RAMP_CLASSES, STATE_CLASSES, look
from tui.widgets.drawn import Drawn, Piece, line

KEEP = 6.0
"""Seconds after which the last telemetry of a host no longer stands for now."""


class Cell(NamedTuple):
    """A number of the table, and its share of what there is."""

    text: str
    share: float | None = None


class HostsPane(Drawn):
    """One row per host; columns that do not fit are left out, the least important first."""

    can_focus = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {"hosts--quiet", *STATE_CLASSES, *RAMP_CLASSES}
    DEFAULT_CSS = """
    HostsPane { & > .hosts--quiet { color: $muted; } }
    """

    COLUMNS: ClassVar[tuple[tuple[str, int, int], ...]] = (
        ("ranks", 8, 6), ("cpu", 7, 1), ("mem", 10, 2), ("gpu", 7, 3), ("gpu mem", 10, 5), ("power", 8, 7),
        ("rx/s", 10, 8), ("tx/s", 10, 9), ("seen", 10, 4),
    )  # fmt: skip
    """Name, width, and how early it is left out (high first)."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "Hosts"
        self._snapshot: Snapshot | None = None
        self._top = 0

    def show(self, snapshot: Snapshot) -> None:
        """Show another moment."""
        first = self._snapshot is None
        self._snapshot = snapshot
        if first:
            self.refresh(layout=True)
        self.redraw()

    def rows(self, width: int) -> int:
        """Headings and hosts."""
        return 1 + (len(self._snapshot.state.hosts) if self._snapshot else 0)

    def scroll_rows(self, by: int) -> None:
        """Move through hosts that do not fit."""
        count = len(self._snapshot.state.hosts) if self._snapshot else 0
        self._top = max(0, min(self._top + by, count - self.size.height + 1))
        self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """A line of headings, then the hosts."""
        if self._snapshot is None or height < 1:
            return []
        snapshot = self._snapshot
        hosts = snapshot.state.hosts
        names = max([4, *(len(clean(host.name)) for host in hosts)])
        words = {host.node: host_word(host, snapshot.state) for host in hosts}
        wide = max(9, *(len(word) + 2 for word in words.values()))
        names = min(names, max(4, width - wide - 8), 24)
        gpus = any(host.telemetry and host.telemetry.get("gpus") for host in hosts)
        shown = self._fitting(
            width - names - wide - 2, gpus=gpus, unseen=any(host.link == "not seen" for host in hosts)
        )
        quiet = self.component("hosts--quiet")
        heads = "".join(f"{name:>{cells}}" for name, cells, _ in shown)
        strips = [line([(f"{'host':<{names}} {'':<{wide}} {heads}", quiet)])]
        for host in hosts[self._top : self._top + height - 1]:
            seen = look(words[host.node])
            pieces: list[Piece] = [f"{clean(host.name)[:names]:<{names}} "]
            pieces.append((f"{seen.glyph} {words[host.node]:<{wide - 2}} ", self.component(seen.css)))
            values = self._values(host, snapshot)
            for name, cells, _ in shown:
                cell = values.get(name, Cell("–"))
                pieces.append((f"{cell.text:>{cells}}", self._style(cell, quiet)))
            strips.append(line(pieces))
        return strips

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
        return self.component(f"ramp--{max(0, min(RAMP - 1, int(cell.share * RAMP)))}")

    def _values(self, host: HostState, snapshot: Snapshot) -> dict[str, Cell]:
        first = sum(one.nproc for one in snapshot.state.hosts[: host.node])
        values = {"ranks": Cell(f"{first}-{first + host.nproc - 1}" if host.nproc > 1 else f"{first}")}
        last = snapshot.seen.get(host.node)
        if last is not None:
            values["seen"] = Cell("now" if host.link == "seen" else time.strftime("%H:%M:%S", time.localtime(last)))
        told = host.telemetry or {}
        taken = number(told.get("t"))
        if taken is None or (host.exit is None and host.link == "seen" and snapshot.now - taken > KEEP):
            return values
        cpu, used, total = (number(told.get(name)) for name in ("cpu", "mem_used", "mem_total"))
        if cpu is not None:
            values["cpu"] = Cell(f"{cpu:.0f} %", cpu / 100)
        if used is not None:
            values["mem"] = Cell(_bytes(used), used / total if total else None)
        for name, source in (("rx/s", "net_rx"), ("tx/s", "net_tx")):
            moved = number(told.get(source))
            if moved is not None:
                values[name] = Cell(_bytes(moved))
        return values | _gpu_values(told.get("gpus"))


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
        values["gpu mem"] = Cell(_bytes(used), used / total if total else None)
    if sums["power"]:
        values["power"] = Cell(f"{sum(sums['power']):.0f} W")
    return values


def _bytes(value: float) -> str:
    for size, unit in ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if value >= size:
            return f"{value / size:.1f} {unit}B"
    return f"{value:.0f} B"
