"""The form to rerun a run: its settings, and the checkpoint to start from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from disttui.runner.api.rerunning import Again
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import figure, gibibytes, rough
from disttui.runner.runs.notes import Checkpoint
from disttui.runner.text import clean, clean_lines
from disttui.tui.dialogs.question import Question
from disttui.tui.keys import bind
from disttui.tui.run.again import RerunValue, SavedState
from disttui.tui.widgets.bars import LEAVE, Hints, Key
from disttui.tui.widgets.table import Column, Row, Table

_COLUMNS = (
    Column("begins", most=32, least=18), Column("step", "right", rank=1), Column("loss", "right", rank=2),
    Column("saved", "right", rank=3), Column("size", "right", rank=4), Column("on", rank=5, most=24),
)  # fmt: skip
_BEGINNING = " beginning"
_LOOKING = " looking"
"""Keys of rows without a checkpoint; the leading space distinguishes them from names of checkpoints."""


class RerunScreen(Question[Again | None]):
    """Asks for the settings and the checkpoint of the new run; returns the result of `make`, or None if cancelled.

    Args:
        title: The question.
        consequence: What starting it does, one sentence per line.
        settings: The values that may be changed.
        find: Finds the checkpoints on the hosts, the newest first; called in a thread.
        make: Called in a thread with the changed values and the checkpoint. Raises InputError.
        resume: Whether to select the newest checkpoint.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("rerun.cancel", "escape", "dismiss", "cancel"),
        bind("rerun.next", "tab,down", "app.focus_next", "next", show=False),
        bind("rerun.before", "shift+tab,up", "app.focus_previous", "before", show=False),
        bind("rerun.start", "enter", "start", "start"),
    ]
    AUTO_FOCUS = "Input"
    IS_FORM = True
    DEFAULT_CSS = """
    RerunScreen .box { max-width: 104; }
    RerunScreen Table { height: auto; max-height: 6; margin: 1 0; background: $panel; }
    RerunScreen Horizontal { height: 1; }
    RerunScreen .key { width: 24; text-wrap: nowrap; text-overflow: ellipsis; color: $muted; }
    RerunScreen .was { width: auto; max-width: 32; text-wrap: nowrap; text-overflow: ellipsis; color: $muted; }
    RerunScreen Horizontal Input { width: 1fr; margin: 0; }
    RerunScreen #flaw { color: $state-failed; display: none; }
    RerunScreen #flaw.-on { display: block; }
    RerunScreen.-narrow .key { width: 16; }
    RerunScreen.-short Table { margin: 0; max-height: 4; }
    """

    def __init__(
        self,
        title: str,
        consequence: Sequence[str],
        settings: Sequence[RerunValue],
        find: Callable[[], Sequence[SavedState]],
        make: Callable[[Sequence[RerunValue], Checkpoint | None], Again],
        *,
        resume: bool,
    ) -> None:
        super().__init__()
        self._title = title
        self._consequence = consequence
        self._settings = settings
        self._find, self._make = find, make
        self._resume = resume
        self._saved: Sequence[SavedState] | None = None
        """The checkpoints on the hosts, the newest first; None until the hosts have answered."""

    def compose(self) -> ComposeResult:
        """Yield the consequence, the checkpoints, a line for each value, the error and the keys."""
        with VerticalScroll(classes="box wide", can_focus=False):
            yield Static(Content.styled(clean(self._title), "bold"))
            yield Static(Content("\n".join(self._consequence)), classes="quiet")
            yield Table(_COLUMNS)
            for at, setting in enumerate((*self._settings, RerunValue("more", ""))):
                with Horizontal():
                    yield Static(Content(f"  {setting.key}"), classes="key", id=f"key-{at}")
                    more = "KEY=VALUE, as after --set" if at == len(self._settings) else ""
                    yield Input(setting.text, placeholder=more, id=f"value-{at}", select_on_focus=False)
                    yield Static(classes="was", id=f"was-{at}")
            yield Static(id="flaw")
            yield Hints(Key("enter", "enter", "start"), Key("tab", "tab", "next"), LEAVE, classes="quiet answers")

    def on_mount(self) -> None:
        self._show()
        if self._resume:
            self.query_one(Table).select(_LOOKING)
            self.query_one(Table).focus()
        self._look()

    @work(group="saved", exclusive=True)
    async def _look(self) -> None:
        why = "no checkpoint found on its hosts: it would start over"
        try:
            self._saved = await asyncio.to_thread(self._find)
        except DisttuiError as error:
            self._saved, why = [], f"its checkpoints are not known: {error}"
        table = self.query_one(Table)
        waits = table.key == _LOOKING  # otherwise the user has chosen something else
        self._show()
        if self._resume and self._saved and waits:
            table.select(self._saved[0].checkpoint.name)
        elif self._resume and not self._saved:
            self._tell(why)

    def _show(self) -> None:
        beginning = Row(_BEGINNING, ("from the beginning", "", "", "", "", ""))
        self.query_one(Table).show([beginning, *self._rows()])

    def _rows(self) -> Iterator[Row]:
        if self._saved is None:
            yield Row(_LOOKING, ([("looking for checkpoints", "muted")], "", "", "", "", ""))
        for one, loss in self._saved or ():
            step = f"{one.step:,}" if one.step is not None else ""
            ago = f"{rough(time.time() - one.written)} ago"
            yield Row(one.name, (f"with {one.name}", step, figure(loss) or "", ago, gibibytes(one.size), one.host))

    @on(Input.Changed)
    def _typed(self) -> None:
        self._tell("")
        for at, setting in enumerate(self._settings):
            changed = self.query_one(f"#value-{at}", Input).value != setting.text
            mark = Content.styled(f"• {setting.key}", "$state-running") if changed else Content(f"  {setting.key}")
            self.query_one(f"#key-{at}", Static).update(mark)
            self.query_one(f"#was-{at}", Static).update(Content(f" was {setting.text or 'empty'}" if changed else ""))

    def _tell(self, flaw: str) -> None:
        self.query_one("#flaw", Static).update(Content(f"✗ {clean_lines(flaw)}" if flaw else ""))
        self.query_one("#flaw").set_class(bool(flaw), "-on").scroll_visible(animate=False)

    @on(Input.Submitted)
    @on(Table.Opened)
    @work(group="start", exclusive=True)
    async def action_start(self) -> None:
        """Close with the settings of the new run, or show what is wrong with them."""
        key, saved = self.query_one(Table).key, self._saved or ()
        if key == _LOOKING:
            self._tell("still looking for checkpoints on its hosts")
            return
        chosen = next((one.checkpoint for one in saved if one.checkpoint.name == key), None)
        typed = [self.query_one(f"#value-{at}", Input).value for at in range(len(self._settings) + 1)]
        changes = [
            RerunValue(one.key, text) for one, text in zip(self._settings, typed, strict=False) if text != one.text
        ]
        if typed[-1].strip():
            changes.append(RerunValue("", typed[-1]))
        try:
            made = await asyncio.to_thread(self._make, changes, chosen)
        except InputError as error:
            self._tell(str(error))
        else:
            self.dismiss(made)
