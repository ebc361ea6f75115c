"""The first screen: what runs, what has run, and what can be run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from time import time as now
from typing import ClassVar

from textual import events, on, work
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.worker import get_current_worker

from runner.errors import DisttuiError, InputError
from runner.formatting import amount, duration
from runner.ids import short
from tui.home import rows
from tui.home.manage import Manager
from tui.home.messages import HostsAsked, ShelfRead
from tui.home.news import ask_hosts
from tui.home.welcome import Welcome
from tui.inventory import HostRow, ProfileRow, RunRow, Shelf, fingerprint, read_shelf
from tui.keys import APP, CHANGE, MOVE, OPEN, VIEW, bind
from tui.screen import DisttuiScreen
from tui.widgets.filter_line import FilterLine
from tui.widgets.points import Pages
from tui.widgets.table import Table
from tui.widgets.tabs import Tabs

LOOK_AGAIN = 4.0
"""Seconds between two checks for changes on the disk."""
ASK_AGAIN = 20.0
"""Seconds between two requests to the hosts of running runs; after 30 s without data a run is "not seen"."""
PANES = ("runs", "profiles", "hosts")


class HomeScreen(DisttuiScreen):
    """Runs, profiles and hosts, each in a pane; on request the details of the row under the cursor."""

    HELP = """Runs that this machine has started or looked at, the profiles that can be run, and the hosts that either
    names. A run goes on without this screen; the hosts of the newest are asked how they are every 20 seconds."""
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("home.new", "n", "new", "new", "describe hosts and job in the wizard", group=OPEN),
        bind("home.run", "r", "run", "run", "run this profile, or this run's again", group=CHANGE),
        bind("home.stop", "x", "stop", "stop", "stop this run on all its hosts", group=CHANGE),
        bind("home.top", "t", "top", "top", "what all hosts are doing now", group=OPEN),
        bind("home.details", "d", "details", "details", "more about what the cursor is on", group=VIEW),
        bind("home.filter", "slash", "filter", "filter", "show only rows with these words", group=VIEW),
        bind("home.edit", "e", "edit", "edit", "open this profile in $EDITOR, then check it", group=CHANGE),
        bind("home.mark", "space", "mark", "mark", "mark this run; stop, delete and tags take all marked",
             group=CHANGE),
        bind("home.sort", "o", "sort", "order", "by age, name, state or how long they took", group=VIEW),
        bind("home.notes", "a", "notes", "tags", "tags and a note for this run, kept on this machine", group=CHANGE),
        bind("home.delete", "D", "delete", "delete", "delete this run, on its hosts and here", group=CHANGE),
        bind("home.sync", "S", "sync", "sync", "get what others have saved in team libraries, and send yours",
             group=CHANGE),
        bind("home.gc", "C", "clean_up", "clean up", "delete runs that ended long ago", group=CHANGE),
        bind("home.example", "e", "example", "example", "watch a recorded run: disttui replay example", group=OPEN,
             show=False),
        bind("home.refresh", "R", "refresh", "refresh", "read everything again", group=VIEW, show=False),
        bind("home.next", "tab,l,right", "pane(1)", "next pane", "to the next pane", group=MOVE, show=False),
        bind("home.previous", "shift+tab,h,left", "pane(-1)", "pane before", group=MOVE, show=False),
        bind("home.runs", "1", "show_pane('runs')", "runs", "to the runs", group=MOVE, show=False),
        bind("home.profiles", "2", "show_pane('profiles')", "profiles", "to the profiles", group=MOVE, show=False),
        bind("home.hosts", "3", "show_pane('hosts')", "hosts", "to the hosts", group=MOVE, show=False),
        bind("home.quit", "q", "app.quit", "quit", "leave disttui; runs go on", group=APP),
        bind("home.clear", "escape", "clear", "clear", "show all rows again, then: mark none", group=VIEW, show=False),
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
    }
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
        #panes { grid-size: 2; grid-columns: 3fr 2fr; grid-rows: 1fr 1fr; grid-gutter: 0 1; }
        #runs { row-span: 2; }
        #profiles, #hosts { height: 1fr; max-height: 100%; }
    }
    HomeScreen.-wide.-tall #details { display: block; }
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
    """

    def __init__(self) -> None:
        super().__init__()
        self._print: tuple[tuple[str, int], ...] | None = None
        self._reported: set[str] = set()
        self._silent: Mapping[str, str] = {}
        """Run → why its hosts gave no answer when they were last asked."""
        self._asking = False
        self._order = "newest"
        self._any_runs = True
        self._manager = Manager(self, partial(self.read, True))

    def body(self) -> Iterable[Widget]:
        """Yield welcome, panes, details and filter."""
        tables = [Table(rows.COLUMNS[pane], id=pane) for pane in PANES]
        for table in tables:
            table.add_class("pane")
            table.set_class(table.id == "runs", "-current")
        # Where there is little room, the footer has the other keys.
        welcome = Welcome(head="PyTorch on several machines, over SSH", id="welcome"), Welcome(3, id="brief")
        yield Vertical(*welcome, Tabs(), *tables, id="panes")
        yield Pages(id="details")
        yield FilterLine()

    def on_mount(self) -> None:
        """Read the runs, profiles and hosts, and again whenever they change."""
        details = self.query_one("#details", Pages)
        details.border_title, details.can_focus = " details ", False
        self._show(self.disttui.shelf)
        self.query_one("#runs").focus()
        self._again = [self.set_interval(LOOK_AGAIN, self.read), self.set_interval(ASK_AGAIN, self._ask)]

    def on_screen_suspend(self) -> None:
        """Stop the checks while another screen is shown: a change of a hidden screen repaints the shown one."""
        for timer in self._again:
            timer.pause()

    def on_screen_resume(self) -> None:
        """Start the checks after this screen is painted: at first, and after another screen was left."""
        for timer in self._again:
            timer.resume()
        self.call_after_refresh(self.read)
        self.call_after_refresh(self._ask)

    def _ask(self) -> None:
        """Ask the hosts of the newest runs, in a daemon thread."""
        if not self._asking:
            self._asking = True
            threading.Thread(target=self._ask_hosts, name="ask", daemon=True).start()

    def _ask_hosts(self) -> None:
        app = self.disttui
        silent: Mapping[str, str] = {}
        try:
            silent = ask_hosts(app.environ, app.ssh_config)
        finally:
            self.post_message(HostsAsked(silent))  # otherwise the hosts would never be asked again

    def on_hosts_asked(self, message: HostsAsked) -> None:
        """Read the new states, or show why there are none."""
        self._asking, self._silent = False, message.silent
        self._show_details()
        self.read()

    @work(thread=True, exclusive=True, group="shelf")
    def read(self, anew: bool = False) -> None:
        """Read the shelf if something on the disk has changed."""
        environ = self.disttui.environ
        seen = fingerprint(environ)
        if anew or seen != self._print or self.disttui.shelf.stale(now()):
            shelf = read_shelf(environ, now())
            if not get_current_worker().is_cancelled:
                self._print = seen
                if shelf != self.disttui.shelf:
                    self.post_message(ShelfRead(shelf))

    def on_shelf_read(self, message: ShelfRead) -> None:
        """Show what was read."""
        self.disttui.shelf = message.shelf
        self._show(message.shelf)

    def _show(self, shelf: Shelf) -> None:
        facts = rows.facts(shelf)
        self.header.show("disttui", facts, right="read-only" if self.disttui.read_only else "")
        self.set_class(shelf.newcomer, "-newcomer")
        for pane in PANES:
            self._table(pane).say_where_empty(rows.empty(shelf, pane, read_only=self.disttui.read_only))
        self._show_runs(shelf)
        self._table("profiles").show(rows.profiles(shelf))
        self._table("hosts").show(rows.hosts(shelf))
        self._show_titles(shelf)
        self._share_width()
        if shelf.read and self._any_runs != bool(shelf.runs):
            self._any_runs = bool(shelf.runs)
            if isinstance(self.focused, Table):
                self._table("runs" if shelf.runs else "profiles").focus()
        self._show_details()
        for problem in shelf.problems:
            if problem not in self._reported:
                self._reported.add(problem)
                self.notify(problem, severity="warning")

    def on_resize(self, event: events.Resize) -> None:
        """Share the new width between the panes."""
        super().on_resize(event)
        self._share_width()

    def _share_width(self) -> None:
        """Where panes are side by side, leave to the others what the runs have no use for."""
        panes, runs = self.query_one("#panes"), self._table("runs")
        wanted = max(self.size.width // 2, runs.full_width)
        if self.has_class("-wide") and not self.has_class("-newcomer") and wanted < self.size.width * 3 // 5:
            panes.styles.grid_columns = f"{wanted} 1fr"
        else:
            panes.styles.clear_rule("grid_columns")

    def _show_runs(self, shelf: Shelf) -> None:
        self._table("runs").show(rows.runs(shelf, now(), self._order), rows.run_columns(shelf))

    def _show_titles(self, shelf: Shelf) -> None:
        tabs: list[tuple[str, str, bool]] = []
        for number, pane in enumerate(PANES, 1):
            table = self._table(pane)
            counted = f"{table.count} of {table.all}" if table.words else f"{table.all}"
            title = [pane.capitalize(), *([counted] if shelf.read else [])]
            if pane == "runs":
                title += [f"by {self._order}"] if self._order != "newest" else []
                title += [f"{len(table.marked)} marked"] if table.marked else []
            label = f"[{number}] {' · '.join(title)}"
            table.border_title = Content(f" {label} ")
            if pane in self._visitable:
                tabs.append((pane, label, table is self._here))
        self.query_one(Tabs).show(tabs)

    @on(Tabs.Chosen)
    def _tab_chosen(self, message: Tabs.Chosen) -> None:
        self.action_show_pane(message.name)

    @property
    def chosen(self) -> Sequence[RunRow]:
        """The marked runs, or else the one under the cursor; none in another pane."""
        table = self._here
        keys = (table.marked or {table.key}) if table.id == "runs" else set()
        return [row for row in self.disttui.shelf.runs if row.run in keys]

    @property
    def chosen_profile(self) -> ProfileRow | None:
        """The profile under the cursor."""
        row = self._row
        return row if isinstance(row, ProfileRow) else None

    def action_mark(self) -> None:
        """Mark or unmark the run under the cursor, and go to the next."""
        self._table("runs").mark()
        self._show_titles(self.disttui.shelf)
        self.refresh_bindings()

    def action_sort(self) -> None:
        """Order the runs by the next of the ORDERS."""
        orders = list(rows.ORDERS)
        self._sort(orders[(orders.index(self._order) + 1) % len(orders)])

    @on(Table.HeadClicked, "#runs")
    def _head_clicked(self, message: Table.HeadClicked) -> None:
        title = rows.run_columns(self.disttui.shelf)[message.column].title
        if title in rows.HEADS:
            self._sort(rows.HEADS[title])

    def _sort(self, order: str) -> None:
        self._order = order
        self._show_runs(self.disttui.shelf)
        self._show_titles(self.disttui.shelf)

    def _table(self, pane: str) -> Table:
        return self.query_one(f"#{pane}", Table)

    @property
    def _here(self) -> Table:
        """The table that has the cursor."""
        return next((table for table in self.query(Table) if table.has_class("-current")), self._table("runs"))

    @property
    def _row(self) -> RunRow | ProfileRow | HostRow | None:
        shelf, table = self.disttui.shelf, self._here
        if table.id == "runs":
            return next((row for row in shelf.runs if row.run == table.key), None)
        if table.id == "hosts":
            return next((row for row in shelf.hosts if row.name == table.key), None)
        return next((row for row in shelf.profiles if str(row.path) == table.key), None)

    def on_descendant_focus(self) -> None:
        """Remember which pane last had the focus."""
        if isinstance(self.focused, Table):
            for table in self.query(Table):
                table.set_class(table is self.focused, "-current")
            self._show_titles(self.disttui.shelf)
            self._show_details()
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only actions that fit the row under the cursor."""
        if action == "stop":
            chosen = self.chosen
            return bool(chosen) and not all(row.over for row in chosen) and not self.disttui.read_only
        if action == "run":
            return isinstance(self._row, RunRow | ProfileRow) and not self.disttui.read_only
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
            return self._here.id == "profiles" and bool(self.disttui.shelf.remotes)
        if action in ("notes", "delete"):
            chosen = self.chosen
            return bool(chosen) and (action == "notes" or all(row.may_go for row in chosen))
        if action == "clean_up":
            return any(row.over for row in self.disttui.shelf.runs) and bool(self.chosen)
        if action == "details":
            return self._row is not None
        return action not in ("mark", "sort") or bool(self.chosen)

    @on(Table.Highlighted)
    def _moved(self) -> None:
        self._show_details()
        self.query_one("#details").scroll_home(animate=False)
        self.refresh_bindings()

    @on(Table.Opened)
    def _opened(self, message: Table.Opened) -> None:
        row = self._row
        if isinstance(row, RunRow):
            opened = self.disttui.router.open_replay if row.over else self.disttui.router.open_run
            opened(row.run)
        elif isinstance(row, ProfileRow):
            self.disttui.router.open_wizard(row.path)
        else:
            self.disttui.router.open_top([message.key])

    def action_new(self) -> None:
        """Open the wizard with an empty profile."""
        self.disttui.router.open_wizard()

    def action_begin(self) -> None:
        """Open the profile under the cursor of the profiles."""
        self.action_show_pane("profiles")
        self._table("profiles").action_open()

    def action_top(self) -> None:
        """Open the view of all hosts."""
        self.disttui.router.open_top()

    def action_example(self) -> None:
        """Open the replay of the recorded run."""
        self.disttui.router.open_replay("example")

    @work(group="ask")
    async def action_run(self) -> None:
        """Ask, then let the wizard check the hosts and launch."""
        row = self._row
        if isinstance(row, RunRow):
            await self._run_again(row.run)
        elif isinstance(row, ProfileRow) and await self.disttui.ask(
            f"Run {row.path.stem}?", rows.run_consequence(row), "run"
        ):
            self.disttui.router.open_wizard(row.path, launch=True)

    async def _run_again(self, run: str) -> None:
        from runner.runs.registry import find_run  # slow to import, like the next ones
        from tui.run.again import run_again

        try:
            known = await asyncio.to_thread(find_run, run, self.disttui.environ)
        except InputError as error:
            self.notify(str(error), severity="error")
        else:
            await run_again(self.disttui, known)

    @work(group="ask")
    async def action_stop(self) -> None:
        """Ask, then stop the run on all its hosts."""
        going = [row for row in self.chosen if not row.over]
        if not going:
            return
        name = short(going[0].run) if len(going) == 1 else amount(len(going), "run")
        will = "\n".join(rows.stop_consequence(row) for row in going)
        if await self.disttui.ask(f"Stop {name}?", will, "stop"):
            for row in going:
                self._stop(row.run)

    @work(thread=True, group="stop", exit_on_error=False)
    def _stop(self, run: str) -> None:
        from tui.run.stopping import end

        app = self.disttui
        began = monotonic()
        try:
            end(app, run)
        except DisttuiError as error:
            app.notify(str(error), title=f"{short(run)} was not stopped", severity="error", timeout=15)
        else:
            app.notify(f"{short(run)} stopped after {duration(monotonic() - began)}")
        self.app.call_from_thread(self.read, True)

    def action_edit(self) -> None:
        """Open the profile in the user's editor."""
        if self.chosen_profile is not None:
            self._manager.edit(self.chosen_profile)

    def action_sync(self) -> None:
        """Sync all libraries that are shared by a repository."""
        self._manager.sync(self.disttui.shelf.remotes)

    @work(group="ask")
    async def action_notes(self) -> None:
        """Ask for tags and a note."""
        if chosen := self.chosen:
            await self._manager.notes(chosen)

    @work(group="ask")
    async def action_delete(self) -> None:
        """Ask, then delete the chosen runs."""
        if (chosen := self.chosen) and all(row.may_go for row in chosen):
            await self._manager.delete(chosen)

    @work(group="ask")
    async def action_clean_up(self) -> None:
        """Ask how old, then delete runs that have ended."""
        await self._manager.clean_up()

    def action_details(self) -> None:
        """Show or hide the details."""
        self.toggle_class("-details")

    def _show_details(self) -> None:
        row = self._row
        home = self.disttui.environ.get("HOME", "")
        silent = self._silent.get(row.run, "") if isinstance(row, RunRow) else ""
        self.query_one("#details", Pages).show(rows.details(row, now(), home, silent) if row else ())

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one(FilterLine).open()

    @on(FilterLine.Changed)
    def _filtered(self, message: FilterLine.Changed) -> None:
        for table in self.query(Table):
            table.filter(message.words)
        self._show_titles(self.disttui.shelf)

    @on(FilterLine.Left)
    def _filter_left(self) -> None:
        self._here.focus()

    def action_clear(self) -> None:
        """Clear the filter; without one, the marks."""
        if not self.query_one(FilterLine).drop():
            self._table("runs").unmark()
            self._show_titles(self.disttui.shelf)
            self.refresh_bindings()
        self._here.focus()

    def action_refresh(self) -> None:
        """Read everything again."""
        self.read(True)

    def action_pane(self, by: int) -> None:
        """Go `by` panes further."""
        shown = self._visitable
        here = str(self._here.id)
        self.action_show_pane(shown[(shown.index(here) + by) % len(shown) if here in shown else 0])

    @property
    def _visitable(self) -> Sequence[str]:
        """The panes that have something: a newcomer has no runs."""
        return PANES[1:] if self.has_class("-newcomer") else PANES

    def action_show_pane(self, pane: str) -> None:
        """Go to a pane; if there is room for one only, show that one."""
        for table in self.query(Table):
            table.set_class(table.id == pane, "-current")
        self._table(pane).focus()
