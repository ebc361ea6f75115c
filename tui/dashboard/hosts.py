"""The table of hosts: what each does, and how much of it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from runner.formatting import duration, number
from runner.render.status import host_word
from runner.runs.state import HostState
from runner.text import clean
from tui.keys import MOVE, OPEN, VIEW, bind
from tui.run.feed import Snapshot
from tui.run.ranks import blamed
from tui.theme import FULL, RAMP_CLASSES, STATE_CLASSES, look
from tui.widgets.drawn import Drawn, Piece, line

KEEP = 6.0
"""Seconds after which the last telemetry of a host no longer stands for now."""
WHEEL = 3
"""Rows that a turn of the wheel moves."""


class Cell(NamedTuple):
    """A number of the table, and its share of what there is."""

    text: str
    share: float | None = None


class RowOrder(NamedTuple):
    """One order of the rows."""

    words: str
    """What the title says of it."""
    key: Callable[[HostState, str, Snapshot], tuple[float, ...]]
    """Of a host, its word and the moment; the lowest comes first."""


class HostsPane(Drawn):
    """One row per host; columns that do not fit are left out, the least important first."""

    can_focus = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "hosts--quiet", "hosts--cursor", *STATE_CLASSES, *RAMP_CLASSES,
    }  # fmt: skip
    DEFAULT_CSS = """
    HostsPane {
        & > .hosts--quiet { color: $muted; }
        & > .hosts--cursor { background: $selected; color: $selected-text; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("hosts.open", "enter", "open", "its ranks", "show the log of this host's ranks", group=OPEN),
        bind("hosts.top", "t", "top", "top", "what this host is doing now", group=OPEN),
        bind("hosts.sort", "o", "sort", "order", "trouble first, the busiest first, as in the profile", group=VIEW),
        bind("hosts.down", "j,down", "cursor_down", "down", "one row down", group=MOVE, show=False),
        bind("hosts.up", "k,up", "cursor_up", "up", "one row up", group=MOVE, show=False),
        bind("hosts.page_down", "ctrl+d,pagedown", "page_down", "page down", group=MOVE, show=False),
        bind("hosts.page_up", "ctrl+u,pageup", "page_up", "page up", group=MOVE, show=False),
        bind("hosts.first", "g", "first", "first", "to the first row", group=MOVE, show=False),
        bind("hosts.last", "G", "last", "last", "to the last row", group=MOVE, show=False),
    ]
    COLUMNS: ClassVar[tuple[tuple[str, int, int], ...]] = (
        ("ranks", 8, 6), ("cpu", 7, 1), ("mem", 10, 2), ("gpu", 7, 3), ("gpu mem", 10, 5), ("power", 8, 7),
        ("rx/s", 10, 8), ("tx/s", 10, 9), ("seen", 10, 4),
    )  # fmt: skip
    """Name, width, and how early it is left out (high first)."""

    class HostChosen(Message):
        """The ranks of a host are to be shown."""

        def __init__(self, node: int) -> None:
            super().__init__()
            self.node = node

    class TopWanted(Message):
        """What a host does now is to be shown."""

        def __init__(self, node: int) -> None:
            super().__init__()
            self.node = node

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "Hosts"
        self._snapshot: Snapshot | None = None
        self._hosts: list[HostState] = []
        """In the order of the rows."""
        self._order = 0
        self._cursor = 0
        self._top = 0

    def show(self, snapshot: Snapshot) -> None:
        """Show another moment; the cursor stays on its host."""
        first = self._snapshot is None
        self._snapshot = snapshot
        self._sort()
        if first:
            self.refresh(layout=True)
        self.redraw()

    def rows(self, width: int) -> int:
        """Headings and hosts."""
        return 1 + len(self._hosts)

    @property
    def node(self) -> int | None:
        """The host under the cursor."""
        return self._hosts[self._cursor].node if self._hosts else None

    def _sort(self) -> None:
        snapshot, here = self._snapshot, self.node
        if snapshot is None:
            return
        words = _words(snapshot)
        key = ORDERS[self._order].key
        self._hosts = sorted(
            snapshot.state.hosts, key=lambda host: (*key(host, words[host.node], snapshot), float(host.node))
        )
        nodes = [host.node for host in self._hosts]
        self._go(nodes.index(here) if here in nodes else 0)

    def _go(self, row: int) -> None:
        """Put the cursor on a row, and keep it in sight."""
        self._cursor = max(0, min(row, len(self._hosts) - 1))
        page = max(1, self.size.height - 1)
        top = max(self._cursor - page + 1, min(self._top, self._cursor))
        self._top = max(0, min(top, len(self._hosts) - page))
        shown = ""
        if page < len(self._hosts):
            shown = f"{self._top + 1}-{min(len(self._hosts), self._top + page)} of {len(self._hosts)}"
        self.set_title("Hosts", ORDERS[self._order].words, shown)

    def draw(self, width: int, height: int) -> list[Strip]:
        """A line of headings, then the hosts."""
        if self._snapshot is None or height < 1:
            return []
        snapshot = self._snapshot
        hosts = snapshot.state.hosts
        names = max([4, *(len(clean(host.name)) for host in hosts)])
        words = _words(snapshot)
        wide = max(9, *(len(word) + 2 for word in words.values()))
        names = min(names, max(4, width - wide - 8), 24)
        gpus = any(host.telemetry and host.telemetry.get("gpus") for host in hosts)
        shown = self._fitting(
            width - names - wide - 2, gpus=gpus, unseen=any(host.link == "not seen" for host in hosts)
        )
        quiet, cursor = self.component("hosts--quiet"), self.component("hosts--cursor")
        heads = "".join(f"{name:>{cells}}" for name, cells, _ in shown)
        strips = [line([(f"{'host':<{names}} {'':<{wide}} {heads}", quiet)])]
        for row in range(self._top, min(len(hosts), self._top + height - 1)):
            host = self._hosts[row]
            seen = look(words[host.node])
            pieces: list[Piece] = [f"{clean(host.name)[:names]:<{names}} "]
            pieces.append((f"{seen.glyph} {words[host.node]:<{wide - 2}} ", self.component(seen.css)))
            values = self._values(host, snapshot)
            stale = is_stale(host, snapshot)
            for name, cells, _ in shown:
                cell = values.get(name, Cell("–"))
                old = stale and name not in ("ranks", "seen")
                pieces.append((f"{cell.text:>{cells}}", quiet if old else self._style(cell, quiet)))
            strip = line(pieces)
            if row == self._cursor and self.has_focus:
                strip = strip.adjust_cell_length(width).apply_style(cursor)
            strips.append(strip)
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
        return self.component(f"ramp--{max(0, min(FULL, int(cell.share * (FULL + 1))))}")

    def _values(self, host: HostState, snapshot: Snapshot) -> dict[str, Cell]:
        first = sum(one.nproc for one in snapshot.state.hosts[: host.node])
        values = {"ranks": Cell(f"{first}-{first + host.nproc - 1}" if host.nproc > 1 else f"{first}")}
        last = snapshot.seen.get(host.node)
        if last is not None:
            age = snapshot.now - last
            values["seen"] = Cell("now" if host.link != "not seen" and age <= KEEP else f"{duration(max(0, age))} ago")
        told: Mapping[str, object] = host.telemetry or {}
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

    def on_focus(self) -> None:
        """Show the cursor."""
        self.redraw()

    def on_blur(self) -> None:
        """Show no cursor."""
        self.redraw()

    def on_resize(self, event: events.Resize) -> None:
        """Keep the cursor in sight."""
        super().on_resize(event)
        self._go(self._cursor)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What a host does now is no part of a replay."""
        return action != "top" or (self._snapshot is not None and self._snapshot.playback is None)

    def action_open(self) -> None:
        """Show its ranks."""
        if self.node is not None:
            self.post_message(self.HostChosen(self.node))

    def action_top(self) -> None:
        """Show what it does now."""
        if self.node is not None:
            self.post_message(self.TopWanted(self.node))

    def action_sort(self) -> None:
        """Take the next order."""
        self._order = (self._order + 1) % len(ORDERS)
        self._sort()
        self.redraw()

    def _move(self, row: int) -> None:
        self._go(row)
        self.redraw()

    def action_cursor_down(self) -> None:
        """One row down."""
        self._move(self._cursor + 1)

    def action_cursor_up(self) -> None:
        """One row up."""
        self._move(self._cursor - 1)

    def action_page_down(self) -> None:
        """A page down."""
        self._move(self._cursor + max(1, self.size.height - 2))

    def action_page_up(self) -> None:
        """A page up."""
        self._move(self._cursor - max(1, self.size.height - 2))

    def action_first(self) -> None:
        """To the first row."""
        self._move(0)

    def action_last(self) -> None:
        """To the last row."""
        self._move(len(self._hosts) - 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Some rows down."""
        event.stop()
        self._move(self._cursor + WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Some rows up."""
        event.stop()
        self._move(self._cursor - WHEEL)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the pointer is; a double click shows the ranks, one on the headings sorts."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            self.action_sort()
        elif self._top + offset.y - 1 < len(self._hosts):
            self._move(self._top + offset.y - 1)
            if event.chain == 2:
                self.action_open()


def _words(snapshot: Snapshot) -> dict[int, str]:
    """What every host does; of those of a failed run only the one where it began has failed by itself.

    In a stall those of the ranks that others wait for are awaited, and the others waiting.
    """
    state = snapshot.state
    words = {host.node: host_word(host, state) for host in state.hosts}
    if state.hosts[0].story.stall is not None and (culprits := blamed(snapshot).culprits):
        first = 0
        for host in state.hosts:
            if words[host.node] == "running":
                words[host.node] = "waiting" if culprits.isdisjoint(range(first, first + host.nproc)) else "awaited"
            first += host.nproc
    if "failed" in words.values() and (began := blamed(snapshot).node) is not None:
        words |= {node: "pulled down" for node, word in words.items() if word == "failed" and node != began}
    return words


def is_stale(host: HostState, snapshot: Snapshot) -> bool:
    """Whether the figures of a host are those of another time than the one that is shown."""
    return host.telemetry is None or snapshot.now - host.telemetry["t"] > KEEP


def _trouble(host: HostState, word: str, snapshot: Snapshot) -> tuple[float, ...]:
    kind = look(word).kind
    return (float(TROUBLE.index(kind)) if kind in TROUBLE else float(len(TROUBLE)),)


def _load(host: HostState, word: str, snapshot: Snapshot) -> tuple[float, ...]:
    """By the GPUs where there are any, else by the cores."""
    told = host.telemetry
    cpu = told.get("cpu", 0.0) if told else 0.0
    gpu = _gpu_values(told.get("gpus") if told else None).get("gpu")
    return (-(gpu.share or 0.0) if gpu else 0.0, -cpu)


TROUBLE = ("failed", "unseen", "slow", "waiting")
"""Kinds of looks that come first where trouble does."""
ORDERS = (
    RowOrder("", lambda host, word, snapshot: ()),
    RowOrder("trouble first", _trouble),
    RowOrder("busiest first", _load),
)


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
