"""Step 1: choose the hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from disttui.runner.formatting import amount
from disttui.runner.hosts.discovery import Candidate, typed_hosts
from disttui.tui.keys import APP, OPEN, VIEW, bind
from disttui.tui.run.again import SANDBOX
from disttui.tui.widgets.points import Point
from disttui.tui.widgets.table import Cell, Column, Row, Table, state_cell
from disttui.tui.wizard.draft import HostCheck, WizardState
from disttui.tui.wizard.hardware import AskingTable, gpu_kinds
from disttui.tui.wizard.step import Step, StepNotes, folded, trouble

SANDBOX_ROW = "sandbox"
"""Key of the row for the sandbox hosts on this machine."""
_HERE = (
    Candidate("local", "here", "this machine, without SSH"),
    Candidate(SANDBOX_ROW, "here", f"{len(SANDBOX)} simulated hosts, to try disttui"),
)
_KEY = "bold $accent"


class HostTable(AskingTable):
    """The table of hosts to tick."""

    PLACE = "the list of hosts"

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("hosts.tick", "space", "tick", "tick", "select or deselect this host", group=OPEN),
        bind("hosts.type", "slash,i,a", "type", "type", "type host names, or filter", group=OPEN),
        bind("hosts.retry", "r", "ask('retry')", "retry", "reconnect to this host", group=VIEW, show=False),
        bind("hosts.dead", "X", "ask('drop dead')", "remove failed", "remove unusable hosts", show=False),
        bind("hosts.cancel", "x", "ask('cancel')", "cancel", "stop waiting for this host", group=VIEW, show=False),
        bind("table.open", "enter", "open", "next", "next step", group=OPEN),
    ]

    class Ticked(Message):
        """A host was ticked or unticked."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def settle(self) -> None:
        """Keep the cursor at the top until the user enters the list, because hosts found later are inserted above."""
        fresh = not (self.has_focus or self._chosen)
        super().settle()
        if fresh:
            self.go(0)

    def cell_clicked(self, column: int, x: int) -> bool:
        if column == 0:
            self.action_tick()
        return column == 0

    def action_tick(self) -> None:
        if self.key:
            self.post_message(self.Ticked(self.key))

    def action_type(self) -> None:
        self.screen.query_one("#names", Input).focus()


class NameInput(Input):
    """The input for host names, which also filters the list as the user types."""

    PLACE = "the line for host names"

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("names.list", "down,tab", "to_list", "choose", "to the list of hosts", group=OPEN),
        bind("names.go", "enter", "submit", "add, next", "add the typed hosts; if empty, continue", group=OPEN),
        bind("names.clear", "escape", "clear", "clear", "clear the input", group=OPEN),
        bind("names.leave", "q", "leave", "back", "leave the wizard, if nothing is typed", show=False,
             group=APP, priority=True),
    ]  # fmt: skip

    def on_paste(self, event: events.Paste) -> None:
        """Insert all pasted lines; Textual's Input inserts only the first."""
        event.stop()
        event.prevent_default()
        self.replace(" ".join(event.text.split()), *self.selection)

    def action_to_list(self) -> None:
        """Focus the list; at the host that has failed if there is one, which the notes show."""
        table, states = self.screen.query_one(HostTable), self.screen.query_one(HostsStep).view.of_hosts()
        table.focus()
        failed = [state.name for state in states if state.error]
        if len(failed) == 1:
            table.select(failed[0])

    def action_clear(self) -> None:
        self.value = ""

    async def action_leave(self) -> None:
        await self.screen.run_action("back")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Clear on escape only if something is typed, and leave on `q` only if nothing is."""
        if action == "leave":
            return not self.value
        return bool(self.value) if action == "clear" else super().check_action(action, parameters)


class HostsStep(Step):
    """Choose hosts from the list, or type their names; the wizard connects to each as soon as it is ticked."""

    TITLE = "Hosts"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column(""), Column("host", most=32), Column("state", most=14), Column("from", rank=2, most=20),
        Column("what", rank=1, most=120, grows=True),
    )  # fmt: skip
    DEFAULT_CSS = """
    HostsStep NameInput { margin: 0 1; }
    HostsStep StepNotes { height: auto; min-height: 8; max-height: 50%; }
    """

    class FileNamed(Message):
        """The user has entered the path of a file with hosts."""

        def __init__(self, path: Path) -> None:
            super().__init__()
            self.path = path

    def compose(self) -> ComposeResult:
        """Yield the input, the list and the notes."""
        with Vertical(classes="main"):
            yield NameInput(placeholder="host names, a filter, or a hostfile", id="names")
            yield HostTable(self.COLUMNS, id="hosts-table")
        yield StepNotes()

    def show(self, view: WizardState) -> None:
        """Show the candidates, and the states of the ticked ones."""
        super().show(view)
        self.query_one(HostTable).show([self._row(one) for one in self._candidates()])
        self._show_notes()

    def enter(self) -> None:
        """Focus the input, because keys typed ahead must not tick hosts in the list."""
        self.query_one(NameInput).focus()

    def leave(self) -> str:
        return "" if self.draft.hosts else "Tick a host with space, or type its name."

    def _candidates(self) -> list[Candidate]:
        known = {one.host: one for source in self.view.found for one in source.candidates}
        chosen = [] if self.draft.sandbox else self.draft.hosts
        source = "profile" if self.draft.path else "typed"
        mine = {name: Candidate(name, source) for name in chosen if name not in known and name != "local"}
        return [*mine.values(), *(one for one in known.values() if one.host not in ("local", SANDBOX_ROW)), *_HERE]

    def _row(self, one: Candidate) -> Row:
        draft = self.draft
        ticked = draft.sandbox if one.host == SANDBOX_ROW else not draft.sandbox and one.host in draft.hosts
        names = SANDBOX if one.host == SANDBOX_ROW else (one.host,)
        states = [state for name in names if ticked and (state := self.view.states.get(name))]
        tick: Cell = [("[x]", "state--running")] if ticked else [("[ ]", "muted")]
        host: Cell = [(one.host, "strong")] if ticked else one.host
        wrong = [finding for state in states if state.facts for finding in self.view.errors(state)]
        what: Cell = [(wrong[0].what, "state--failed")] if wrong else _what(one, states)
        shown = [("✗ unusable", "state--failed")] if wrong else _state(states)
        return Row(one.host, (tick, host, shown, [(one.source, "muted")], what))

    def _show_notes(self) -> None:
        notes = self.query_one(StepNotes)
        states = self.view.of_hosts()
        ready = sum(state.state == "ready" and not self.view.errors(state) for state in states)
        title = f"{amount(len(states), 'host')} ticked, {ready} ready" if states else "no host ticked yet"
        notes.tell(title, *self._lines())

    def _lines(self) -> Iterator[Point | str]:
        typed = self.query_one(NameInput).value.strip()
        if typed:
            yield self._meaning(typed)
            return
        table, states = self.query_one(HostTable), self.view.of_hosts()
        about = list(self._about(table.key)) if table.has_focus else []
        yield from about
        dead = [state for state in states if state.error]
        to_list = "" if table.has_focus else "tab "
        if len(dead) > 1 and not self.draft.sandbox:
            if len(dead) < len(states):  # otherwise no host would remain
                yield Point(f"removes {len(dead)} unusable hosts", mark=f"{to_list}X ", mark_style=_KEY)
            yield from () if about else folded(dead)
        elif dead and not table.has_focus and dead[0].error:
            yield from trouble(dead[0].error)
            yield Point("retries", mark="tab r ", mark_style=_KEY)
        elif not states:
            names = "Type host names and add them with enter, or tick some in the list with space."
            yield "Tick hosts with space." if table.has_focus else names
        elif not dead and not any(one.pending for one in states):
            yield _enter("continues to the hardware of these hosts")
        elif not about and not dead:
            waiting = [one.name for one in states if one.pending]
            yield f"No answer yet from {', '.join(waiting[:6])}{' …' if len(waiting) > 6 else ''}."
        for source in self.view.found:
            yield from (Point(problem, "$state-slow", "▲ ") for problem in source.problems[:3])

    def _about(self, key: str) -> Iterator[Point | str]:
        """Yield the notes on the row under the cursor."""
        names = SANDBOX if key == SANDBOX_ROW and self.draft.sandbox else [key] if not self.draft.sandbox else []
        states = [state for name in names if name in self.draft.hosts and (state := self.view.states.get(name))]
        state = min(states, key=_severity, default=None)
        if key == SANDBOX_ROW and (state is None or not state.error):
            yield "Two simulated hosts on this machine, by SSH over loopback; nothing else is needed."
            yield "Runs on them end when you quit disttui; runs on real hosts keep running."
        if state and state.error:
            yield from trouble(state.error)
            yield Point("retries", mark="r ", mark_style=_KEY)
        elif state and state.pending:
            yield "No answer yet. You can continue without it."
            yield Point("stops waiting for it", mark="x ", mark_style=_KEY)

    def _meaning(self, typed: str) -> Point:
        """The effect of enter on the typed text."""
        if path := _file(typed):
            return _enter(f"reads the hosts of {path.name}")
        if one := self._only(typed):
            return _enter(f"ticks {one}")
        found = typed_hosts(typed)
        if found.problems:
            return Point(found.problems[0], "$state-failed", "✗ ")
        return _enter(f"adds {', '.join(one.host for one in found.candidates[:8])}")

    def _only(self, typed: str) -> str:
        """The host with the typed name, or the only one whose name contains it, or empty."""
        words = typed.casefold().split()
        known = [one.host for one in self._candidates()]
        if typed in known or len(words) != 1:
            return typed if typed in known else ""
        if re.fullmatch(r"[\d.]+\.\d+|.*[:@].*", words[0]):
            return ""  # an address in full, although it may be a part of another one
        fits = [host for host in known if words[0] in host.casefold() and host not in self.draft.hosts]
        return fits[0] if len(fits) == 1 else ""

    @on(Input.Changed, "#names")
    def _typed(self, event: Input.Changed) -> None:
        self.query_one(HostTable).filter("" if _file(event.value) else event.value)
        self.refresh_bindings()
        self._show_notes()

    @on(Input.Submitted, "#names")
    def _add(self, event: Input.Submitted) -> None:
        text, names = event.value.strip(), self.query_one(NameInput)
        if not text:
            self.post_message(self.GoOn())
            return
        if path := _file(text):
            self.post_message(self.FileNamed(path))
            names.value = ""
            return
        found = typed_hosts(text)
        wanted = [only] if (only := self._only(text)) else [one.host for one in found.candidates]
        if wanted and not found.problems:
            names.value = ""
            self._take(wanted)

    @on(HostTable.Ticked)
    def _tick(self, event: HostTable.Ticked) -> None:
        if event.key == SANDBOX_ROW:
            self._post([] if self.draft.sandbox else SANDBOX, sandbox=not self.draft.sandbox)
        elif not self.draft.sandbox and event.key in self.draft.hosts:
            self._post([name for name in self.draft.hosts if name != event.key])
        else:
            self._take([event.key])

    @on(Table.Highlighted)
    @on(events.DescendantFocus)
    def _moved(self) -> None:
        self._show_notes()

    def _take(self, names: Iterable[str]) -> None:
        if SANDBOX_ROW in names:
            self._post(SANDBOX, sandbox=True)
            return
        before = [] if self.draft.sandbox else self.draft.hosts
        self._post(list(dict.fromkeys([*before, *names])))

    def _post(self, names: Sequence[str], *, sandbox: bool = False) -> None:
        self.post_message(self.Changed(self.draft.with_hosts(names, sandbox=sandbox)))


def _enter(does: str) -> Point:
    return Point(does, mark="enter ", mark_style=_KEY)


def _file(text: str) -> Path | None:
    """The typed file: an existing path with a slash, or a name with the ending of a host file; None for others."""
    try:
        path = Path(text.strip()).expanduser()
        return (
            path if ("/" in text and path.is_file()) or text.endswith((".ini", ".yaml", ".yml", "hostfile")) else None
        )
    except (OSError, RuntimeError, ValueError):
        return None


def _severity(state: HostCheck) -> int:
    """Sort key of states, the worst first."""
    return ("failed", "left out", "connecting", "probing", "ready").index(state.state)


def _state(states: Sequence[HostCheck]) -> Cell:
    if not states:
        return ""
    worst = min(states, key=_severity)
    if worst.state == "ready":
        return [("✓ ready", "state--done")]
    return [("◌ " + worst.state, "state--waiting")] if worst.pending else state_cell(worst.state)


def _what(one: Candidate, states: Sequence[HostCheck]) -> Cell:
    first = min(states, key=_severity, default=None)
    if first and first.error:
        what = first.error.reason.splitlines()
        return [(what[0] if what else "", "state--failed")]
    if first and first.facts:
        return summary(first)
    return [(one.note, "muted")]


def summary(state: HostCheck) -> str:
    """The hardware of a probed host as text: `8 × A100-SXM4 80 GiB · 64 cores · 512 GiB`."""
    assert state.facts is not None
    gpus = gpu_kinds(state.facts) if state.facts.gpus else "no GPU"
    return f"{gpus} · {amount(state.facts.cpu.available, 'core')} · {round(state.facts.memory.total / 2**30)} GiB"
