"""The table of hosts, each with its GPUs below it: use, memory, network, power, temperature."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.style import Style
from textual.binding import BindingType
from textual.strip import Strip

from disttui.runner.formatting import amount, duration
from disttui.runner.hosts.load import GpuLoad, Load
from disttui.runner.runs.watch import HostNow
from disttui.runner.text import clean
from disttui.tui.keys import ROW_KEYS, VIEW, bind
from disttui.tui.load import meters
from disttui.tui.load.feed import LoadHistory, percent, step_of
from disttui.tui.theme import look
from disttui.tui.widgets.drawn import Piece, cells
from disttui.tui.widgets.row_list import RowList, Sort

SPACE = "  "
"""The gap between two columns."""
_LEAST = 4
"""Minimum cells of a bar."""
_WIDE = 106
"""Minimum width for the columns of the last minutes, the load, and runs."""

_GPU = 39
"""Cells of a GPU's row without its name, its bars, the last minutes, total memory and users."""
_RUN = 12
"""Minimum cells for the runs, taken from the last minutes if necessary, because truncated names are useless."""
_TREND = len("last 3:00")
"""Minimum cells for the last minutes: those of the column's title."""


class ColumnLayout(NamedTuple):
    """Widths of the columns, in cells."""

    name: int
    bar: int
    trend: int
    """0 if the last minutes are not shown."""
    gpus: int
    """0 if the GPUs are not shown, or no host has any."""
    who: int
    of: bool
    """Whether memory is shown as used/total."""
    net: bool


def lay_out(
    width: int, longest: int, gpus: int, leased: int = 0, users: int = 0, *, alone: bool = False
) -> ColumnLayout:
    """Fit the columns into `width` cells: omit columns that do not fit, and give remaining room to the bars.

    Args:
        longest: Cells of the longest name.
        gpus: The largest number of GPUs of any host.
        leased: Cells of the longest lease at the end of a GPU's row, a sentence: it gets half of the room of the last
            minutes and, if it is still cut off, that of the bars and the total memory.
        users: Cells of the names at the end of a GPU's row; the bars leave room for them.
        alone: Whether the only row is a GPU's, so that the columns of a host need no room.
    """
    space, wide = len(SPACE), width >= _WIDE
    name = min(longest, 26 if wide else 10 + max(0, width - 76) // 4)
    if alone:  # widen the name before the bars, which show no more when they are longer
        name += max(0, min(longest - name, width - name - _GPU - 6 - users - 2 * _LEAST))
    trend = min(60, (width - 90) // 2) if wide else 0
    who = min(40, (width - 96) // 4) if wide else 0
    if wide and who < _RUN:
        taken = min(trend, _RUN - who)
        trend, who = trend - taken, who + taken
    if leased:
        trend, who = trend - trend // 2, who + trend // 2
    if trend < _TREND:
        trend, who = 0, who + trend
    columns = [2 + name, 6, 6, *(one for one in (trend, 15 if wide else 0, who) if one)]
    fixed = sum(columns) + space * (len(columns) - 1)
    room = width - fixed - 2 * _LEAST
    of, strip, net = (room >= least for least in (6, 6 + (gpus + 8 if gpus else 0), 6 + gpus + 8 + 14))
    fixed += (6 if of else 0) + (gpus + 6 + space if gpus and strip else 0) + (12 + space if net else 0)
    beside = name + _GPU + (6 if of else 0) + (trend + space if trend else 0) + users
    most = (width - beside) // 2
    if alone and wide:
        fixed, most = 0, most - _RUN
    bar = max(_LEAST, min(24, (width - fixed) // 2, most if most >= _LEAST else 24))
    if leased and wide and not alone:
        lacking = leased + beside - users + 2 * bar - width
        slim = max(_LEAST, bar - max(0, (lacking + 1) // 2))
        lacking, who, bar = lacking - 2 * (bar - slim), who + 2 * (bar - slim), slim
        if lacking > 0 and of:
            of, who = False, who + 6
    return ColumnLayout(name, bar, trend, gpus if strip else 0, who, of, net)


MODES = ("auto", "open", "folded")
_SENTENCE = 16
"""Minimum cells for more than the names of users."""
_MEASURED = 64
"""Maximum number of rows whose users are measured for the width."""


@dataclass(frozen=True)
class LoadRow:
    """A row of the table: a host, or one of its GPUs."""

    host: HostNow
    gpu: GpuLoad | None = None
    last: bool = False
    """Whether it is the last GPU of its host."""

    @property
    def key(self) -> str:
        """Such as `node1` or `node1/0`; host names contain no slash."""
        return self.host.name if self.gpu is None else f"{self.host.name}/{self.gpu.index}"


class HostsTable(RowList[LoadRow]):
    """The table of hosts and GPUs."""

    PLACE = "hosts"
    """Its name in the help, because its title contains only numbers."""
    BINDINGS: ClassVar[list[BindingType]] = [
        *ROW_KEYS,
        bind("top.fold", "e", "fold", "GPUs", "rows per GPU, per host, or automatic", group=VIEW),
    ]
    SORTS: ClassVar[Sequence[Sort[HostNow]]] = (
        Sort("host", lambda host: 0),
        Sort("cpu", lambda host: meters.sort_key(host.load, "cpu")),
        Sort("memory", lambda host: meters.known_first(percent(*meters.memory(host.load)))),
        Sort("gpus", lambda host: meters.known_first(meters.mean(host.load, "use"))),
        Sort("gpu memory", lambda host: meters.known_first(meters.gpu_memory(host.load))),
        Sort("power", lambda host: meters.known_first(meters.total(host.load, "power"))),
        Sort("hottest", lambda host: meters.known_first(meters.hottest(host.load))),
        Sort("net", lambda host: meters.sort_key(host.load, "net_rx") + meters.sort_key(host.load, "net_tx")),
    )

    def __init__(self, history: LoadHistory, id: str | None = None) -> None:
        super().__init__(id=id)
        self.mode = 0
        self.room = 20
        """Number of rows available; in the automatic mode, GPUs have rows if all of them fit."""
        self.only: str = ""
        """The key of the host or GPU that is shown alone; empty for all."""
        self._history = history
        self._hosts: tuple[HostNow, ...] = ()
        self._plan = ColumnLayout(6, 6, 0, 0, 0, of=True, net=True)
        self._now = 0.0
        self._gpus = 0
        """Number of GPUs of all hosts."""
        self._leased = 0
        """Cells of the longest lease at the end of a GPU's row."""
        self._users = 0
        """Cells of the longest names of users at the end of a GPU's row."""

    def show(self, hosts: tuple[HostNow, ...], now: float) -> None:
        self._hosts, self._now = hosts, now
        self.settle()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer `fold` only if there are GPUs, and `open` unless a GPU is shown alone."""
        if action == "fold":
            return self._gpus > 0 and not self.only
        return not (action == "open" and "/" in self.only)

    def key_of(self, item: LoadRow) -> str:
        return item.key

    def ordered(self) -> list[LoadRow]:
        """The hosts in the chosen order, each with its GPUs if the mode and the room allow it."""
        name, _, gpu = self.only.partition("/")
        hosts = [host for host in self._hosts if (not name or host.name == name) and self._wanted(host)]
        if self.sorted_by:
            hosts = self.by_choice(hosts)  # type: ignore[arg-type, assignment]
        elif self.turned:
            hosts.reverse()
        else:  # failed hosts come last
            hosts.sort(key=lambda host: host.state == "failed")
        if gpu:
            return [one for host in hosts for one in _gpus(host) if one.key == self.only]
        many = sum(1 + len(host.load.gpus) if host.load else 1 for host in hosts)
        opened = bool(name) or MODES[self.mode] == "open" or (MODES[self.mode] == "auto" and many <= self.room)
        return [one for host in hosts for one in (LoadRow(host), *(_gpus(host) if opened else ()))]

    def _wanted(self, host: HostNow) -> bool:
        names = [gpu.name for gpu in host.load.gpus] if host.load else []
        runs = [process.run for process in host.load.processes] if host.load else []
        leases = [word for one in host.leases or () for word in (one["user"], one["run"])]
        return self.fits(host.name, host.state, *names, *runs, *leases)

    def settle(self) -> None:
        """Sort and filter again, and show the number of hosts and GPUs."""
        before = len(self.items)
        super().settle()
        gpus = sum(len(host.load.gpus) for host in self._hosts if host.load)
        if gpus != self._gpus:
            self._gpus = gpus
            self.refresh_bindings()
        hosts = amount(len(self._hosts), "host")
        counted = f"{hosts}, {amount(gpus, 'GPU')}" if gpus else hosts
        title = clean(self.only.replace("/", "  GPU ")) if self.only else counted
        self.set_title(title, self.filter_words, self.sort_words if self.sorted_by or self.turned else "")
        if len(self.items) != before:
            self.refresh(layout=True)

    def draw(self, width: int, height: int) -> list[Strip]:
        """Choose the columns, then draw the rows."""
        if not self.items:
            return [self.none_left()] if self.words else []
        self._plan = self._laid_out(width - 2)
        return super().draw(width, height)

    def _laid_out(self, width: int) -> ColumnLayout:
        gpus = max([0, *(len(entry.host.load.gpus) for entry in self.items if entry.host.load)])
        labels = [len(entry.host.name) if entry.gpu is None else len(self._label(entry)) for entry in self.items]
        users = [len(_who(entry.host, entry.gpu, 0)) for entry in self.items[:_MEASURED] if entry.gpu is not None]
        # These columns never shrink, so that a process that starts or ends does not move the others.
        self._users = max([self._users, *(min(most, _SENTENCE - 1) for most in users)])
        held = [
            (entry.host, meters.lease_of(entry.host, entry.gpu.index)) for entry in self.items[:_MEASURED] if entry.gpu
        ]
        self._leased = max([self._leased, *(len(meters.lease_words(host, lease)) for host, lease in held if lease)])
        leased = max(1, self._leased) if any(entry.host.leases for entry in self.items) else 0
        return lay_out(width, max([6, *labels]), min(16, gpus), leased, self._users, alone="/" in self.only)

    def _label(self, entry: LoadRow) -> str:
        """The name of a row: the host's, or the GPU's index and model."""
        if entry.gpu is None:
            return clean(entry.host.name)
        model = " ".join(word for word in entry.gpu.name.split() if word not in ("NVIDIA", "GeForce"))
        return f"{entry.gpu.index} {model}"

    def head(self, width: int) -> list[Piece]:
        """The titles of a host's columns; rows of GPUs contain their units."""
        plan, space = self._plan, SPACE
        alone = "/" in self.only
        pieces: list[Piece] = [self.title(f"{'gpu' if alone else 'host':<{plan.name + 2}}"), space]
        pieces += [self.title(f"{'use' if alone else 'cpu':<{plan.bar + 6}}"), space]
        if plan.trend:
            lasting = duration(plan.trend * step_of(plan.trend))
            pieces += [self.title(f"{f'last {lasting}':<{plan.trend}}"), space]
        pieces += [self.title(f"{'memory':<{plan.bar + (12 if plan.of else 6)}}"), space]
        if alone:
            return [*pieces, self.title(f"{'power':>9}"), space, self.title(f"{'temp':>5}"), "   ", self.title("user")]
        if plan.gpus:
            pieces += [self.title(f"{'gpus':<{plan.gpus + 6}}"), space]
        if plan.net:
            pieces += [self.title(f"{'in':>6}"), self.title(f"{'out':>6}")]
        if plan.who:
            power = "power" if plan.gpus else ""
            pieces += [space, self.title(f"{'load':>5}"), space, self.title(f"{power:>6}"), space]
            pieces += [self.title(f"{'runs':<{plan.who}}")]
        return pieces

    def row(self, item: LoadRow, width: int) -> list[Piece]:
        if item.gpu is not None:
            return self._gpu_row(item, item.gpu, width)
        host = item.host
        seen = look(meters.STATES.get(host.state, host.state))
        glyph = (seen.glyph + " ", self.component(seen.css))
        name = (meters.fit(self._label(item), self._plan.name) + SPACE, self.component("strong"))
        if host.load is None or host.state in ("connecting", "failed"):
            return [glyph, name, *self._absent(host, width - self._plan.name - 4)]
        return [glyph, name, *self._figures(host, host.load, width - self._plan.name - 4)]

    def _absent(self, host: HostNow, width: int) -> list[Piece]:
        """The text in place of missing figures."""
        css = look(meters.STATES.get(host.state, host.state)).css
        if host.state == "connecting":
            return [(f"connecting {max(0.0, self._now - host.since):.0f} s", self.component(css))]
        why = clean(" ".join(f"{host.problem}{'. ' if host.cure else ''}{host.cure}".split()))
        since = f" since {time.strftime('%H:%M:%S', time.localtime(host.since))}" if host.state == "not seen" else ""
        word = f"{host.state}{since}  "
        return [(word, self.component(css)), (meters.fit(why, max(0, width - len(word))), self.component("muted"))]

    def _figures(self, host: HostNow, load: Load, width: int) -> list[Piece]:
        plan, space, ink = self._plan, SPACE, self._ink(host)
        pieces: list[Piece] = [*meters.bar(load.cpu, plan.bar, ink), space]
        pieces += self._trend(host.name, None)
        pieces += [*self._memory(load.mem_used, load.mem_total, ink), space]
        if plan.gpus:
            pieces += [*self._cells(load.gpus, ink), space]
        if host.state != "seen":
            return [*pieces, *self._lost(host, width - cells(pieces))]
        if plan.net:
            pieces += [f" {meters.rate(load.net_rx)} {meters.rate(load.net_tx)}"]
        if plan.who:
            power = meters.total(load, "power")
            pieces += [space, f"{meters.NONE:>5}" if load.load is None else f"{load.load:>5.1f}", space]
            pieces += [" " * 6 if power is None else f"{power:>4.0f} W", space]
            runs = list(dict.fromkeys(process.run for process in load.processes if process.run))
            words = ", ".join([*meters.other_leases(host), *runs])
            pieces += [(meters.fit(words, plan.who), self.component("muted"))]
        return pieces

    def _lost(self, host: HostNow, width: int) -> list[Piece]:
        """Since when a host is unreachable, shown beside its last figures."""
        at = time.strftime("%H:%M:%S", time.localtime(host.heard or 0.0))
        words = f"unreachable since {at}  {clean(host.problem.splitlines()[0] if host.problem else '')}"
        shown = meters.fit(words, width) if width >= 26 else f"since {at[:5]}"[:width]
        return [(shown, self.component(look("not seen").css))]

    def _ink(self, host: HostNow) -> meters.Paint:
        """The styles of a host's figures, which are muted if they are outdated."""
        if host.state == "seen":
            return self.component
        return lambda name: self.component("rule" if name == "rule" else "muted")

    def _gpu_row(self, item: LoadRow, gpu: GpuLoad, width: int) -> list[Piece]:
        plan, space, ink = self._plan, SPACE, self._ink(item.host)
        branch = "" if self.only == item.key else "╰ " if item.last else "├ "
        pieces: list[Piece] = [(f"{branch:2}", self.component("rule"))]
        pieces += [(meters.fit(self._label(item), plan.name), self.component("muted")), space]
        pieces += [*meters.bar(gpu.use, plan.bar, ink), space]
        pieces += self._trend(item.host.name, gpu.index)
        pieces += [*self._memory(gpu.mem_used, gpu.mem_total, ink), space]
        limit = f"/{gpu.power_limit:.0f}" if gpu.power_limit else ""
        power = meters.NONE if gpu.power is None else f"{gpu.power:.0f}{limit} W"
        pieces += [(f"{power:>9}", _heat(gpu.power, gpu.power_limit, ink)), space]
        temp = meters.NONE if gpu.temp is None else f"{gpu.temp:.0f} °C"
        pieces += [(f"{temp:>5}", _heat(gpu.temp, 95.0, ink))]
        pieces += [(" ▲" if gpu.throttle else "  ", self.component(look("slow").css))]
        room = width - cells(pieces) - 1
        whose = meters.fit(_who(item.host, gpu, room), max(0, room))
        return [*pieces, " ", (whose, self.component("muted"))]

    def _trend(self, host: str, gpu: int | None) -> list[Piece]:
        width = self._plan.trend
        if not width:
            return []
        values = self._history.columns(host, gpu, "use", width)
        return [meters.curve(values, width, 100.0, self.component("ramp--0")), SPACE]

    def _memory(self, used: float | None, whole: float | None, ink: meters.Paint) -> list[Piece]:
        share = percent(used, whole)
        rest = f"/{meters.size(whole).strip():<5}" if self._plan.of else ""
        if share is None:
            return [("─" * self._plan.bar, self.component("rule")), f" {meters.size(used)}{'':{len(rest)}}"]
        figure = (f" {meters.size(used)}", ink(meters.ramp(share / 100)))
        return [*meters.strip(share, self._plan.bar, ink), figure, (rest, self.component("muted"))]

    def _cells(self, gpus: Sequence[GpuLoad], ink: meters.Paint) -> list[Piece]:
        most = self._plan.gpus
        shown: list[Piece] = [meters.level(gpu.use, ink) for gpu in gpus[:most]]
        known = [gpu.use for gpu in gpus if gpu.use is not None]
        value = sum(known) / len(known) if known else None
        text = f"{'':6}" if value is None else f" {value:>3.0f} %"
        return [*shown, " " * (most - len(shown)), (text, ink(meters.ramp((value or 0.0) / 100)))]

    def action_fold(self) -> None:
        """Switch between rows for GPUs if they fit, always, and never."""
        self.mode = (self.mode + 1) % len(MODES)
        self.notify(("a row for each GPU where all fit", "a row for each GPU", "a row for each host")[self.mode])
        self.settle()


def _gpus(host: HostNow) -> list[LoadRow]:
    gpus = host.load.gpus if host.load else ()
    return [LoadRow(host, gpu, last=gpu is gpus[-1]) for gpu in gpus]


def _heat(value: float | None, limit: float | None, ink: meters.Paint) -> Style:
    if value is None:
        return ink("muted")
    return ink(meters.ramp(value / limit)) if limit else Style.null()


def _who(host: HostNow, gpu: GpuLoad, room: int) -> str:
    """The lease of a GPU, then its other users, each once; only their names if `room` is small."""
    on_it = [process for process in host.load.processes if gpu.index in process.gpus] if host.load else []
    lease = meters.lease_of(host, gpu.index)
    words = [] if lease is None else [meters.lease_words(host, lease) if room >= _SENTENCE else lease["user"]]
    others = (one for one in on_it if lease is None or one.user != lease["user"])
    words += (f"{one.user} {one.run or one.command.split(' ')[0]}" if room >= _SENTENCE else one.user for one in others)
    return ", ".join(dict.fromkeys(clean(word).strip() for word in words))
