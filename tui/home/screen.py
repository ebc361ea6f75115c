"""The home screen: runs, profiles and hosts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import time as now
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static
from textual.worker import get_current_worker

from disttui.runner import private
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.ids import short
from disttui.runner.paths import inside
from disttui.runner.user.folders import user_folder
from disttui.tui.home import rows
from disttui.tui.home.manage import ManagingScreen
from disttui.tui.home.rows import Welcome
from disttui.tui.inventory import POINTS, HostRow, Inventory, ProfileRow, RunRow, fingerprint, read_inventory
from disttui.tui.keys import APP, CHANGE, MOVE, OPEN, VIEW, bind
from disttui.tui.load.feed import TopChanged, TopFailed, TopFeed
from disttui.tui.widgets.choices import Tabs
from disttui.tui.widgets.filter_line import FilterLine
from disttui.tui.widgets.points import Pages
from disttui.tui.widgets.table import Table

if TYPE_CHECKING:
    from disttui.runner.api.viewer import Viewer
    from disttui.runner.runs.watch import HostNow

NEWEST = 12
"""Maximum number of runs whose hosts are queried."""


def ask_hosts(environ: Mapping[str, str], ssh_config: str | None, asked: set[str]) -> Mapping[str, str]:
    """Query the hosts as `disttui ps` does, and store the answers; blocks. Returns run → why there is no new state.

    Args:
        asked: Ended runs whose hosts have been asked for their newest checkpoint; this function adds to it.
    """
    from disttui.runner.runs.registry import known_runs

    newest = sorted(known_runs(environ)[0], key=lambda run: -run.started)
    runs = [run for run in newest if not run.settled][:NEWEST]
    ended = [run for run in newest[:NEWEST] if run.settled and not run.sandbox and run.run not in asked]
    if not runs and not ended:
        return {}
    from disttui.runner.api.listing import refresh
    from disttui.runner.api.rerunning import keep_newest
    from disttui.runner.api.viewer import Viewer
    from disttui.runner.runs.notes import KEPT

    with Viewer(environ, ssh_config=ssh_config, runs_bring_theirs=True) as viewer:
        try:
            silent = refresh(viewer, runs) if runs else {}
        except DisttuiError as error:
            silent = {run.run: error.sentence for run in runs}
        for run in ended:
            asked.add(run.run)
            with suppress(DisttuiError):
                if not inside(run.folder, KEPT).exists():
                    keep_newest(viewer, run)
    return silent


def visit(environ: Mapping[str, str]) -> float:
    """Record that the app is used now; return the unix time (s) of the last use, or 0 if there was none."""
    path, last = user_folder("state", environ) / "visited", 0.0
    with suppress(OSError):
        last = path.stat().st_mtime
    with suppress(OSError):
        private.make_folder(path.parent)
        private.write(path, "")
        os.utime(path, (now(), now()))
    return last


LOOK_AGAIN = 4.0
"""Seconds between two checks for changes on disk."""
ASK_AGAIN = 20.0
"""Seconds between two queries of the hosts of running runs; after 30 s without data a run is "not seen"."""
WATCHED = 16
"""Maximum number of watched hosts, each with a connection that is open while this screen is shown."""
PACE = 5.0
"""Seconds between two reports of a watched host."""
PANES = ("runs", "profiles", "hosts")


def _with_last(host: HostNow, last: HostNow | None) -> HostNow:
    """A host's state, with its previous report if it has sent none since it reconnected."""
    if last is None or host.heard is not None:
        return host
    return replace(host, load=last.load, leases=last.leases, heard=last.heard)


class HomeScreen(ManagingScreen):
    """Runs, profiles and hosts, each in a pane; optionally the details of the row under the cursor."""

    HELP = """Runs that this machine has started or attached to, the profiles that it can run, and the hosts that they
    name, with their GPUs and the runs of others. Runs continue without this screen. While it is shown, the hosts report
    every 5 seconds, and those of the newest runs are queried every 20 seconds."""
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("home.new", "n", "new", "new", "describe hosts and job in the wizard", group=OPEN),
        bind("home.run", "r", "run", "run", "run this profile, or rerun this run", group=CHANGE),
        bind("home.compare", "v", "compare", "compare", "compare the marked runs: losses and differences",
             group=OPEN),
        bind("home.resume", "R", "resume", "resume", "resume this run from a checkpoint", group=CHANGE, show=False),
        bind("home.stop", "x", "stop", "stop", "stop this run on all hosts", group=CHANGE),
        bind("home.pull", "p", "pull", "pull", "copy this run's checkpoints and results here", group=CHANGE,
             show=False),
        bind("home.top", "t", "top", "top", "show the load of all hosts", group=OPEN),
        bind("home.details", "d", "details", "details", "show details of the selected row", group=VIEW),
        bind("home.filter", "slash", "filter", "filter", "show only matching rows", group=VIEW),
        bind("home.edit", "e", "edit", "edit", "open this profile in $EDITOR, then check it", group=CHANGE),
        bind("home.mark", "space", "mark", "mark", "mark this run; compare, stop, delete and tag all marked"),
        bind("home.sort", "o", "sort", "order", "order by age, name, state or duration", group=VIEW),
        bind("home.notes", "a", "notes", "tags", "edit tags and a note, kept on this machine", group=CHANGE),
        bind("home.delete", "D", "delete", "delete", "delete this run on its hosts and here", group=CHANGE),
        bind("home.sync", "S", "sync", "sync", "pull and push team libraries",
             group=CHANGE),
        bind("home.gc", "C", "clean_up", "clean up", "delete old runs", group=CHANGE),
        bind("home.sandbox", "s", "sandbox", "sandbox", "train now, on simulated hosts on this machine",
             group=CHANGE, show=False),
        bind("home.example", "e", "example", "example", "replay a recorded run", group=OPEN,
             show=False),
        bind("home.refresh", "f5", "refresh", "refresh", "reload everything", group=VIEW, show=False),
        bind("home.next", "tab,l,right", "pane(1)", "next pane", group=MOVE, show=False),
        bind("home.previous", "shift+tab,h,left", "pane(-1)", "previous pane", group=MOVE, show=False),
        bind("home.runs", "1", "show_pane('runs')", "runs", group=MOVE, show=False),
        bind("home.profiles", "2", "show_pane('profiles')", "profiles", group=MOVE, show=False),
        bind("home.hosts", "3", "show_pane('hosts')", "hosts", group=MOVE, show=False),
        bind("home.quit", "q", "app.quit", "quit", "quit; runs continue, except in a sandbox", group=APP),
        bind("home.clear", "escape", "clear", "clear", "clear the filter, then the marks", group=VIEW, show=False),
    ]  # fmt: skip
    DEFAULT_CSS = """
    HomeScreen {
        #panes { width: 100%; height: 1fr; layout: grid; grid-size: 1; grid-rows: 1fr auto auto; }
        #runs { height: 1fr; }
        #profiles, #hosts { height: auto; max-height: 34vh; }
        #hosts { max-height: 21vh; }
        #details { display: none; height: auto; max-height: 9; padding: 0 0 0 2; border-top: solid $rule;
                   border-title-color: $muted; }
        #welcome, #brief { display: none; height: auto; padding: 1 2; }
        #tabs { display: none; }
        #news { display: none; height: 1; padding: 0 2; text-wrap: nowrap; text-overflow: ellipsis; }
        #news.-some { display: block; }
        &.-behind > * { visibility: hidden; }
    }
    HomeScreen.-short #news { display: none; }
    HomeScreen.-newcomer {
        #welcome { display: block; }
        #runs { display: none; }
        #panes { grid-rows: auto 1fr auto; }
        #profiles { height: 1fr; max-height: 100%; }
    }
    HomeScreen.-details #details { display: block; }
    HomeScreen.-details.-medium #hosts { display: none; }
    HomeScreen.-details.-medium #hosts.-current, HomeScreen.-details.-medium.-wide #hosts { display: block; }
    HomeScreen.-details.-short #details { max-height: 5; }
    HomeScreen.-wide {
        #panes { grid-size: 2; grid-columns: 1fr 1fr; grid-rows: 3fr 2fr; grid-gutter: 0 1; }
        #runs { column-span: 2; }
        #profiles, #hosts { height: 1fr; max-height: 100%; }
    }
    HomeScreen.-wide.-tall #details { display: block; max-height: 16; }
    HomeScreen.-wide.-tall.-details #details { display: none; }
    HomeScreen.-wide.-newcomer { #panes { grid-size: 1; grid-columns: 1fr; grid-rows: auto 1fr 1fr; } }
    HomeScreen.-short {
        #panes { grid-size: 1; grid-columns: 1fr; grid-rows: auto 1fr; }
        #tabs { display: block; }
        #runs, #profiles, #hosts { display: none; height: 1fr; max-height: 100%; row-span: 1; }
        #runs.-current, #profiles.-current, #hosts.-current { display: block; }
    }
    HomeScreen.-short.-newcomer {
        #panes { grid-rows: auto auto 1fr; }
        #welcome { display: none; }
        #brief { display: block; padding: 0 2; }
    }
    HomeScreen.-short.-newcomer.-details {
        #panes { grid-rows: auto 1fr; }
        #brief { display: none; }
    }
    HomeScreen.-guest.-medium, HomeScreen.-guest.-tall {
        #welcome { display: block; }
        #panes { grid-rows: auto 1fr auto auto; }
    }
    HomeScreen.-guest.-wide {
        #welcome { column-span: 2; }
        #panes { grid-rows: auto 3fr 2fr; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._print: tuple[tuple[str, int], ...] | None = None
        self._reported: set[str] = set()
        self._silent: Mapping[str, str] = {}
        """Run → why its hosts gave no answer when last queried."""
        self._asking = False
        self._asked_for_saved: set[str] = set()
        self._order = "newest"
        self._any_runs = True
        self._early: Timer | None = None
        self._adopting = ""
        """A run of another user that is being read, to be shown."""
        self._since: float | None = None
        """When the app was last used (unix time, s); None until it is read, 0 if never or once the news was shown."""
        self._visiting = threading.Lock()
        self._news = Content()
        self._feed: TopFeed | None = None
        self._viewer: Viewer | None = None
        self._watched: Sequence[str] = ()
        self._live: Mapping[str, HostNow] = {}

    def body(self) -> Iterable[Widget]:
        """Yield the news, welcome, panes, details and filter."""
        self._tables = tables = [Table(rows.COLUMNS[pane], id=pane) for pane in PANES]
        for table in tables:
            table.add_class("pane")
            table.set_class(table.id == "runs", "-current")
        # The short welcome has three steps; the footer shows the other keys.
        welcome = Welcome(head="PyTorch on several machines, over SSH", id="welcome"), Welcome(3, id="brief")
        yield Static(id="news")
        yield Vertical(*welcome, Tabs(), *tables, id="panes")
        yield Pages(id="details")
        yield FilterLine()

    def on_mount(self) -> None:
        """Show the inventory, and read it and query the hosts regularly."""
        details = self.query_one("#details", Pages)
        details.border_title, details.can_focus = " details ", False
        self._show(self.disttui.inventory)
        self.query_one("#runs").focus()
        self._again = [self.set_interval(LOOK_AGAIN, self._look_again), self.set_interval(ASK_AGAIN, self._ask)]

    def on_screen_suspend(self) -> None:
        """Stop the checks while another screen is shown, because a change of a hidden screen repaints the shown one."""
        self.remove_class("-behind")
        for timer in self._again:
            timer.pause()
        if not self.app.screen.is_modal:
            self._watch(())
            self._since = self._since and 0.0
            self._show_news()

    def on_screen_resume(self) -> None:
        """Start the checks once this screen is painted, initially and after returning from another screen."""
        for timer in self._again:
            timer.resume()
        self.call_after_refresh(self.read)
        self.call_after_refresh(self._ask)
        self.call_after_refresh(self._watch_hosts)

    def on_unmount(self) -> None:
        self._watch(())

    def _watch_hosts(self) -> None:
        """Watch the hosts in the list, those with runs first."""
        if self.disttui.inventory.read and self.app.screen is self:
            used = [row for row in self.disttui.inventory.hosts if row.used]
            self._watch([row.name for row in sorted(used, key=lambda row: not row.runs)[:WATCHED]])

    def _watch(self, names: Sequence[str]) -> None:
        """Watch these hosts instead of the previous ones."""
        if set(names) == set(self._watched):
            return
        if self._feed is not None:
            self._feed.close()
        self._watched = names
        self._feed = self.make_feed(names) if names else None
        if self._feed is not None:
            self._feed.start()

    def make_feed(self, names: Sequence[str]) -> TopFeed:
        """Make the source of the hosts' states."""
        return TopFeed(self, names, None, self._quiet, PACE)

    def _quiet(self) -> Viewer:
        """The viewer of this screen, which asks the user nothing; called in a thread."""
        from disttui.runner.api.viewer import Viewer

        if self._viewer is None:
            app = self.disttui
            self._viewer = Viewer(app.environ, ssh_config=app.ssh_config, runs_bring_theirs=True)
            app.at_end.append(self._viewer.close)
        return self._viewer

    def on_top_changed(self, message: TopChanged) -> None:
        """Show the states of the watched hosts; a reconnected host keeps its last report until it sends a new one."""
        if self._watched:  # otherwise a late message, from before another screen was opened
            live = [host for host in message.hosts if host.name in self._watched]
            self._live = {host.name: _with_last(host, self._live.get(host.name)) for host in live}
            self._show(self.disttui.inventory)

    def on_top_failed(self, message: TopFailed) -> None:
        self.notify(str(message.error), severity="warning")

    def _ask(self) -> None:
        """Query the hosts of the newest runs in a daemon thread, unless a query is running."""
        if not self._asking:
            self._asking = True
            threading.Thread(target=self._ask_hosts, name="ask", daemon=True).start()

    def _ask_hosts(self) -> None:
        app = self.disttui
        silent: Mapping[str, str] = {}
        try:
            silent = ask_hosts(app.environ, app.ssh_config, self._asked_for_saved)
        finally:
            self.call_later(self._asked, silent)  # otherwise the hosts would never be queried again

    def _asked(self, silent: Mapping[str, str]) -> None:
        """Read the new states, or show why they are missing."""
        self._asking, self._silent = False, silent
        self._show_details()
        self._look_again()

    def _look_again(self) -> None:
        """Read the inventory unless that is being done: it may take long on a slow disk."""
        if not any(one.node is self and one.group == "inventory" and one.is_running for one in self.workers):
            self.read()

    @work(thread=True, exclusive=True, group="inventory")
    def read(self, anew: bool = False) -> None:
        """Read the inventory if something on disk has changed, a run has become stale, or if asked to."""
        environ = self.disttui.environ
        seen = fingerprint(environ)
        if anew or seen != self._print or self.disttui.inventory.stale(now()):
            inventory = read_inventory(environ, now(), self.disttui.ssh_config, self._take_runs)
            with self._visiting:  # the next read may begin before a slow one has ended
                if self._since is None:
                    self._since = visit(environ)
                    self.disttui.at_end.append(partial(visit, environ))
            if not get_current_worker().is_cancelled:
                self._print = seen
                if inventory != self.disttui.inventory:
                    self.call_later(self._take, inventory)

    def _take_runs(self, runs: tuple[RunRow, ...]) -> None:
        if runs != self.disttui.inventory.runs and not get_current_worker().is_cancelled:
            self.call_later(self._wait_for_profiles, runs)

    def _wait_for_profiles(self, runs: tuple[RunRow, ...]) -> None:
        """Show the runs without the profiles if reading the profiles takes more than a second."""
        if self._early is not None:
            self._early.stop()
        self._early = self.set_timer(1.0, lambda: self._take(replace(self.disttui.inventory, runs=runs)))

    def _take(self, inventory: Inventory) -> None:
        if self._early is not None:
            self._early.stop()
        self.disttui.inventory = inventory
        self._show(inventory)
        self.refresh_bindings()
        self._watch_hosts()

    def _show(self, inventory: Inventory) -> None:
        facts = rows.facts(inventory, self._live, now())
        self.header.show("disttui", facts, right="read-only" if self.disttui.read_only else "")
        self.set_class(inventory.newcomer and not self._runs, "-newcomer")
        self.set_class(inventory.newcomer and bool(self._runs), "-guest")  # other users' runs are on these hosts
        for pane in PANES:
            self._table(pane).say_where_empty(rows.empty(inventory, pane, read_only=self.disttui.read_only))
        self._show_runs(inventory)
        self._table("profiles").show(rows.profiles(inventory))
        self._table("hosts").show(rows.hosts(inventory, self._live), rows.host_columns(self._live))
        self._show_titles(inventory)
        self._show_news()
        if inventory.read and self._any_runs != bool(inventory.runs):
            self._any_runs = bool(inventory.runs)
            if isinstance(self.focused, Table):
                self._table("runs" if inventory.runs else "profiles").focus()
        self._show_details()
        for problem in inventory.problems:
            if problem not in self._reported:
                self._reported.add(problem)
                self.notify(problem, severity="warning")

    def _show_news(self) -> None:
        """Show the runs that have ended since the last visit."""
        words = rows.news(self.disttui.inventory.runs, self._since, now()) if self._since else Content()
        if words != self._news:
            self._news = words
            self.query_one("#news", Static).set_class(bool(words), "-some").update(words)

    def on_resize(self, event: events.Resize) -> None:
        super().on_resize(event)
        self._show_runs(self.disttui.inventory)

    def _show_runs(self, inventory: Inventory) -> None:
        curve = 8 if self.size.width < 120 else rows.CURVE
        shown = replace(inventory, runs=self._runs)
        self._table("runs").show(rows.runs(shown, now(), self._order, curve), rows.run_columns(shown, curve))

    @property
    def _runs(self) -> tuple[RunRow, ...]:
        """The known runs, and others on the watched hosts."""
        inventory = self.disttui.inventory
        return (*inventory.runs, *rows.others(inventory, self._live, now()))

    def _show_titles(self, inventory: Inventory) -> None:
        tabs: list[tuple[str, str, bool]] = []
        for number, pane in enumerate(PANES, 1):
            table = self._table(pane)
            counted = f"{table.count} of {table.all}" if table.words else f"{table.all}"
            title = [pane.capitalize(), *([counted] if inventory.read else [])]
            if pane == "runs":
                title += [f"by {self._order}"] if self._order != "newest" else []
                title += [f"{len(table.marked)} marked"] if table.marked else []
            label = f"[{number}] {' · '.join(title)}"
            table.set_title(f" {label} ")
            if pane in self._visitable:
                tabs.append((pane, label, table is self._here))
        self.query_one(Tabs).show(tabs)

    @on(Tabs.Chosen)
    def _tab_chosen(self, message: Tabs.Chosen) -> None:
        self.action_show_pane(message.name)

    @property
    def chosen(self) -> Sequence[RunRow]:
        """The marked runs, or else the one under the cursor; empty in the other panes."""
        table = self._here
        keys = (table.marked or {table.key}) if table.id == "runs" else set()
        return [row for row in self.disttui.inventory.runs if row.run in keys]

    @property
    def chosen_profile(self) -> ProfileRow | None:
        """The profile under the cursor."""
        row = self._row
        return row if isinstance(row, ProfileRow) else None

    def action_mark(self) -> None:
        """Toggle the mark of the run under the cursor, and go to the next run."""
        self._table("runs").mark()
        self._show_titles(self.disttui.inventory)
        self.refresh_bindings()

    def action_compare(self) -> None:
        self.disttui.router.open_compare([row.run for row in reversed(self.chosen)])  # the oldest first

    def action_sort(self) -> None:
        orders = list(rows.ORDERS)
        self._sort(orders[(orders.index(self._order) + 1) % len(orders)])

    @on(Table.HeadClicked, "#runs")
    def _head_clicked(self, message: Table.HeadClicked) -> None:
        title = rows.run_columns(self.disttui.inventory)[message.column].title
        if title in rows.HEADS:
            self._sort(rows.HEADS[title])

    def _sort(self, order: str) -> None:
        self._order = order
        self._show_runs(self.disttui.inventory)
        self._show_titles(self.disttui.inventory)

    def _table(self, pane: str) -> Table:
        return self.query_one(f"#{pane}", Table)

    @property
    def _here(self) -> Table:
        """The table that has the cursor."""
        return next(table for table in self._tables if table.has_class("-current"))

    @property
    def _row(self) -> RunRow | ProfileRow | HostRow | None:
        inventory, table = self.disttui.inventory, self._here
        if table.id == "runs":
            return next((row for row in self._runs if row.run == table.key), None)
        if table.id == "hosts":
            return next((row for row in inventory.hosts if row.name == table.key), None)
        return next((row for row in inventory.profiles if str(row.path) == table.key), None)

    def on_descendant_focus(self) -> None:
        if isinstance(self.focused, Table):
            for table in self._tables:
                table.set_class(table is self.focused, "-current")
            self._show_titles(self.disttui.inventory)
            self._show_details()
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only actions that fit the row under the cursor."""
        if action == "stop":
            chosen = self.chosen
            return bool(chosen) and not all(row.over for row in chosen) and not self.disttui.read_only
        if action == "run":
            row = self._row
            usable = not row.foreign if isinstance(row, RunRow) else isinstance(row, ProfileRow) and not row.example
            return usable and not self.disttui.read_only
        if action in ("resume", "pull"):
            row = self._row
            usable = isinstance(row, RunRow) and not row.sandbox and not row.foreign and (row.over or action == "pull")
            return usable and not self.disttui.read_only
        if action == "compare":
            return len(self.chosen) > 1
        return self._usable(action, *parameters) and super().check_action(action, parameters)

    def _usable(self, action: str, *parameters: object) -> bool:
        """Whether an action fits the chosen rows."""
        if action == "show_pane":
            return parameters[0] in self._visitable
        if action == "example":
            return self.disttui.read_only or not self._usable("edit")  # which has the same key
        if action == "edit":
            profile = self.chosen_profile
            return profile is not None and profile.origin != "built in"
        if action == "sync":
            return self._here.id == "profiles" and bool(self.disttui.inventory.remotes)
        if action in ("notes", "delete"):
            chosen = self.chosen
            return bool(chosen) and (action == "notes" or all(row.may_go for row in chosen))
        if action == "clean_up":
            return any(row.over for row in self.disttui.inventory.runs) and bool(self.chosen)
        row = self._row
        fits = {"details": row is not None, "mark": isinstance(row, RunRow) and not row.foreign}
        return fits.get(action, action != "sort" or bool(self.chosen))

    @on(Table.Highlighted)
    def _moved(self) -> None:
        self._show_details()
        self.query_one("#details").scroll_home(animate=False)
        self.refresh_bindings()

    @on(Table.Opened)
    def _opened(self, message: Table.Opened) -> None:
        row = self._row
        if isinstance(row, RunRow) and row.foreign:
            if row.run != self._adopting:
                self._adopting = row.run
                self.notify(f"reading {short(row.run)} from {row.hosts[0]}")
                self._open_foreign(row)
        elif isinstance(row, RunRow) and row.over:
            self.disttui.router.open_replay(row.run)
        elif isinstance(row, RunRow):
            self.disttui.router.open_run(row.run)
        elif isinstance(row, ProfileRow):
            self.disttui.router.open_wizard(row.path)
        else:
            self.disttui.router.open_load([message.key])

    @work(thread=True, group="adopt", exclusive=True, exit_on_error=False)
    def _open_foreign(self, row: RunRow) -> None:
        """Register a run that was started elsewhere and open it; if it cannot be read, open its hosts."""
        from disttui.runner.api.finding import adopt
        from disttui.runner.runs.places import chosen

        app = self.disttui
        try:
            # Two names, because a single one may be that of a profile.
            place, *_ = chosen((row.hosts[0], "local"), None, app.environ)
            run = adopt(app.viewer(), row.run, place.host.label()).run
        except DisttuiError as error:
            app.notify(str(error), title=f"{short(row.run)} of {row.by} cannot be read", severity="warning")
            app.call_from_thread(self._adopted, row.run, partial(app.router.open_load, row.hosts))
        else:
            app.call_from_thread(self._adopted, row.run, partial(app.router.open_run, run))

    def _adopted(self, run: str, show: Callable[[], object]) -> None:
        """Show a run that was registered, unless another screen is shown or another run was chosen."""
        if run == self._adopting:
            self._adopting = ""
            if self.app.screen is self:
                show()

    def action_new(self) -> None:
        self.disttui.router.open_wizard()

    def action_begin(self) -> None:
        """Open the selected profile."""
        self.action_show_pane("profiles")
        self._table("profiles").action_open()

    def action_top(self) -> None:
        self.disttui.router.open_top()

    def action_sandbox(self) -> None:
        self.disttui.router.open_sandbox()

    def action_example(self) -> None:
        self.disttui.router.open_replay("example", playing=True)

    @work(group="again", exclusive=True)  # a second press before the form is shown opens no second form
    async def action_run(self) -> None:
        """Rerun the run under the cursor, or run the profile once confirmed, after the wizard's checks."""
        row = self._row
        if isinstance(row, RunRow):
            await self._run_again(row.run)
        elif isinstance(row, ProfileRow) and row.problem:
            self.disttui.router.open_wizard(row.path)  # which shows the errors
        elif isinstance(row, ProfileRow) and await self.disttui.ask(
            f"Run {row.path.stem}?", rows.run_consequence(row), "run"
        ):
            self.disttui.router.open_wizard(row.path, launch=True)

    @work(group="again", exclusive=True)
    async def action_resume(self) -> None:
        """Open the form to rerun an ended run, with its newest checkpoint selected."""
        if isinstance(self._row, RunRow):
            await self._run_again(self._row.run, resume=True)

    def action_pull(self) -> None:
        if isinstance(self._row, RunRow):
            self.disttui.router.open_pull(self._row.run)

    async def _run_again(self, run: str, *, resume: bool = False) -> None:
        from disttui.runner.runs.registry import find_run  # slow to import, like the next module
        from disttui.tui.run.again import run_again

        try:
            known = await asyncio.to_thread(find_run, run, self.disttui.environ)
        except InputError as error:
            self.notify(str(error), severity="error")
        else:
            await run_again(self.disttui, known, resume=resume)

    def action_details(self) -> None:
        self.toggle_class("-details")

    def _show_details(self) -> None:
        row = self._row
        home = self.disttui.environ.get("HOME", "")
        silent = self._silent.get(row.run, "") if isinstance(row, RunRow) else ""
        live = self._live.get(row.name) if isinstance(row, HostRow) else None
        chart = (POINTS, 8) if self.has_class("-wide", "-tall") else (rows.CURVE, 1)
        self.query_one("#details", Pages).show(rows.details(row, now(), home, silent, live, chart) if row else ())

    def action_filter(self) -> None:
        self.query_one(FilterLine).open()

    @on(FilterLine.Changed)
    def _filtered(self, message: FilterLine.Changed) -> None:
        for table in self.query(Table):
            table.filter(message.words)
        self._show_titles(self.disttui.inventory)

    @on(FilterLine.Left)
    def _filter_left(self) -> None:
        self._here.focus()

    def action_clear(self) -> None:
        """Clear the filter, or the marks if there is no filter."""
        if not self.query_one(FilterLine).drop():
            self._table("runs").unmark()
            self._show_titles(self.disttui.inventory)
            self.refresh_bindings()
        self._here.focus()

    def action_refresh(self) -> None:
        self.read(True)

    def action_pane(self, by: int) -> None:
        """Go `by` panes forward."""
        shown = self._visitable
        here = str(self._here.id)
        self.action_show_pane(shown[(shown.index(here) + by) % len(shown) if here in shown else 0])

    @property
    def _visitable(self) -> Sequence[str]:
        """The panes that can be visited: a newcomer has no runs."""
        return PANES[1:] if self.has_class("-newcomer") else PANES

    def action_show_pane(self, pane: str) -> None:
        """Focus a pane, and show it if there is room for only one."""
        for table in self._tables:
            table.set_class(table.id == pane, "-current")
        self._table(pane).focus()
