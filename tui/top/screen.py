"""The live load of hosts, with or without a run: all of them, one, or one GPU, with their processes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import events, on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from disttui.runner.formatting import amount
from disttui.runner.runs.watch import HostNow
from disttui.runner.text import clean, clean_lines
from disttui.tui.keys import APP, MOVE, VIEW, bind
from disttui.tui.load import meters
from disttui.tui.load.feed import LoadHistory, TopChanged, TopFailed, TopFeed
from disttui.tui.screen import Command, DisttuiScreen
from disttui.tui.top.hosts import HostsTable, LoadRow
from disttui.tui.top.panes import CurvesPane, ProcessPane, Running
from disttui.tui.widgets.filter_line import FilterLine
from disttui.tui.widgets.row_list import RowList


class TopScreen(DisttuiScreen):
    """Shows the load of hosts.

    Args:
        words: Names of hosts, or of a profile; empty for all known hosts.
        profile: The file of a profile, instead of `words`.
    """

    HELP = (
        "CPUs, memory, network, GPUs and processes of hosts, updated every second, with or without a run. "
        "Enter shows one host or GPU alone, with its last minutes; escape returns to all. "
        "A GPU's row ends with its lease and other users. "
        "In and out are bytes per second from and to other machines. Bars go from blue (low) to orange (full)."
    )
    SCOPED_CSS = False
    CSS = """
    TopScreen {
        #load { height: auto; max-height: 55%; min-height: 3; }
        #curves { display: none; height: 1fr; min-height: 5; max-height: 14; }
        #processes { height: 1fr; min-height: 4; }
        #failure { display: none; width: 1fr; height: 1fr; content-align: center middle; color: $muted; }
        .pane { padding: 0 1; }
        &.-alone #curves { display: block; }
        &.-short.-alone {
            #load { max-height: 35%; }
            #curves { height: 1fr; min-height: 3; max-height: 4; }
            #processes { min-height: 3; }
        }
        &.-zoomed .pane { display: none; }
        &.-zoomed .pane.-zoom { display: block; height: 1fr; max-height: 100%; }
        &.-failed .pane { display: none; }
        &.-failed #failure { display: block; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("top.back", "q,escape", "back", "back", "to all hosts, then previous screen", group=APP),
        bind("top.filter", "slash", "filter", "filter", "show only matching rows", group=VIEW),
        bind("top.pane", "tab", "pane", "pane", "other pane", group=MOVE),
        bind("top.zoom", "z", "zoom", "zoom", "this pane alone, or all", group=VIEW),
        bind("top.leave", "x", "leave", "leave", "stop watching the selected host", group=VIEW),
        bind("top.retry", "r", "retry", "retry", "reconnect to missing hosts", group=VIEW),
        bind("top.copy", "y", "copy", "copy", "copy the row", group=VIEW, show=False),
    ]

    def __init__(self, words: Sequence[str] = (), profile: Path | None = None) -> None:
        super().__init__()
        self._words, self._profile = words, profile
        self._hosts: tuple[HostNow, ...] = ()
        self._now = 0.0
        self._feed: TopFeed | None = None
        self._history = LoadHistory()
        self._load = HostsTable(self._history, id="load")
        self._curves = CurvesPane(self._history, id="curves")
        self._processes = ProcessPane(id="processes")

    def body(self) -> Iterable[Widget]:
        """Yield the hosts, curves, processes, error and filter."""
        for pane in (self._load, self._curves, self._processes):
            yield pane.add_class("pane")
        yield Static(id="failure")
        yield FilterLine()

    def on_mount(self) -> None:
        self.header.show("top", ["resolving hosts"])
        self._load.focus()
        self._feed = self.make_feed()
        self._feed.start()

    def make_feed(self) -> TopFeed:
        """Make the source of the hosts' states."""
        return TopFeed(self, self._words, self._profile, self.disttui.viewer)

    def on_unmount(self) -> None:
        if self._feed is not None:
            self._feed.close()

    def on_top_changed(self, message: TopChanged) -> None:
        self.show(message.hosts, message.now)

    def on_top_failed(self, message: TopFailed) -> None:
        self.header.show("top", state="failed")
        what, cure = clean_lines(message.error.sentence), clean_lines(message.error.cure)
        self.query_one("#failure", Static).update(Content.assemble((what, "$state-failed"), "\n", cure))
        self.add_class("-failed")

    def show(self, hosts: tuple[HostNow, ...], now: float) -> None:
        """Show the hosts at a unix time (s), from any source."""
        self._hosts, self._now = hosts, now
        self._history.take(hosts)
        self._load.show(hosts, now)
        self._curves.show(hosts)
        self._processes.show(hosts)
        self._show_header()

    def _show_header(self) -> None:
        only, _, alone = self._load.only.partition("/")
        hosts = [host for host in self._hosts if not only or host.name == only]
        count = {state: sum(host.state == state for host in hosts) for state in ("seen", "not seen", "failed")}
        facts = [self._lease_alone(), f"{count['seen']} of {len(hosts)} seen" if count["seen"] < len(hosts) else ""]
        loads = [host.load for host in hosts if host.load is not None and host.state == "seen"]
        if alone:
            loads = [replace(load, gpus=tuple(gpu for gpu in load.gpus if f"{gpu.index}" == alone)) for load in loads]
        gpus = [gpu for load in loads for gpu in load.gpus]
        if gpus:
            used = [gpu.use for gpu in gpus if gpu.use is not None]
            sizes = [(gpu.mem_used, gpu.mem_total) for gpu in gpus if gpu.mem_used is not None and gpu.mem_total]
            full = [100.0 * sum(one for one, _ in sizes) / sum(most for _, most in sizes)] if sizes else []
            busy = f"{sum(used) / len(used):.0f} % busy" if used else ""
            facts.append(busy if alone else f"{amount(len(gpus), 'GPU')} {busy}".rstrip())
            facts.append(f"{'' if alone else 'GPU '}memory {sum(full) / len(full):.0f} % full" if full else "")
            watts = sum(gpu.power or 0.0 for gpu in gpus)
            facts.append(f"{watts / 1000:.1f} kW" if watts >= 1000 else f"{watts:.0f} W" if watts else "")
            taken = 0 if alone else sum(map(meters.leased, hosts))
            facts.append(f"{taken} leased" if taken else "")
        elif cpus := [load for load in loads if load.cpu is not None and load.cpus]:
            number = sum(load.cpus or 0 for load in cpus)
            share = sum((load.cpu or 0.0) * (load.cpus or 0) for load in cpus) / number
            facts.append(f"{number} CPUs {share:.0f} % busy")
        state = "not seen" if count["not seen"] else "failed" if count["failed"] and not loads else ""
        name = clean(self._load.only.replace("/", " GPU ")) or "top"
        self.header.show(
            name, [fact for fact in facts if fact], state, time.strftime("%H:%M:%S", time.localtime(self._now))
        )

    def _lease_alone(self) -> str:
        """The lease of the GPU that is shown alone, as text; empty if it is free, or if all are shown."""
        here = self._load.here if "/" in self._load.only else None
        lease = meters.lease_of(here.host, here.gpu.index) if here and here.gpu else None
        return clean(meters.lease_words(here.host, lease)) if here and lease else ""

    @property
    def _pane(self) -> RowList[LoadRow] | RowList[Running]:
        """The processes if they have the focus, or else the hosts."""
        return self._processes if self._processes.has_focus else self._load

    def commands(self) -> Iterator[Command]:
        for host in self._hosts:
            name = clean(host.name)
            yield Command(f"Only {name}", f"show this host alone ({host.state})", partial(self.narrow, host.name))
            for gpu in host.load.gpus if host.load else ():
                key = f"{host.name}/{gpu.index}"
                yield Command(f"Only {name} GPU {gpu.index}", gpu.name, partial(self.narrow, key))

    def on_resize(self, event: events.Resize) -> None:
        super().on_resize(event)
        self._fit(event.size.height)

    @on(RowList.Opened)
    def _opened(self, message: RowList.Opened) -> None:
        if isinstance(message.pane, HostsTable):
            self.narrow(message.key)
        elif isinstance(message.pane.here, Running):
            process = message.pane.here.process
            words = process.command or "its command is not visible"
            self.notify(
                words, title=f"pid {process.pid} of {process.user}" + (f", {process.tag}" if process.tag else "")
            )

    def narrow(self, key: str) -> None:
        """Show one host or GPU alone, or all if the key is empty."""
        before, self._load.only = self._load.only, key
        self._curves.only = self._processes.only = key
        self.set_class(bool(key), "-alone")
        self.show(self._hosts, self._now)
        self.refresh_bindings()
        if before and not key:
            keys = [entry.key for entry in self._load.items]
            self._load.go(keys.index(before) if before in keys else 0)

    async def action_back(self) -> None:
        """Clear the filter, then leave the zoom, then show all hosts, then leave the screen."""
        if self.query_one(FilterLine).drop():
            return
        if self.has_class("-zoomed"):
            self.action_zoom()
        elif self._load.only:
            self.narrow("")
        else:
            await super().action_back()

    def action_filter(self) -> None:
        self._filtered_pane = self._pane
        self.query_one(FilterLine).open()

    @on(FilterLine.Changed)
    def _filtered(self, message: FilterLine.Changed) -> None:
        for pane in (self._load, self._processes):
            if pane is self._filtered_pane or not message.words:
                pane.filter(message.words)

    @on(FilterLine.Left)
    def _filter_left(self) -> None:
        self._filtered_pane.focus()

    def action_pane(self) -> None:
        target = self._load if self._processes.has_focus else self._processes
        if self.has_class("-zoomed"):
            self.action_zoom()
        target.focus()

    def action_zoom(self) -> None:
        """Show the pane with the cursor alone, or all panes."""
        for pane in (self._load, self._processes):
            pane.set_class(pane is self._pane, "-zoom")
        self.toggle_class("-zoomed")
        self._fit(self.size.height)

    def _fit(self, height: int) -> None:
        self._load.room = 10**6 if self.has_class("-zoomed") else int((height - 2) * 0.55) - 2
        self._load.settle()

    def action_leave(self) -> None:
        here = self._pane.here
        name = here.host.name if isinstance(here, LoadRow) else here.host if here else ""
        if name and self._feed is not None and self._feed.watch is not None:
            self._feed.watch.leave(name)
            self.notify(f"{name} is no longer watched; reopen top to watch it.")
            if self._load.only.partition("/")[0] == name:
                self.narrow("")

    def action_retry(self) -> None:
        """Reconnect immediately to all hosts that are not connected."""
        if self._feed is not None and self._feed.watch is not None:
            self._feed.watch.retry()

    def action_copy(self) -> None:
        here = self._pane.here
        if isinstance(here, Running):
            self.disttui.copy(here.process.command or f"{here.process.pid}")
        elif here is not None:
            self.disttui.copy(here.key)
