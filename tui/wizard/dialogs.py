"""The dialogs of the wizard: where to save, and the progress of an immediate start."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Input, Static

from disttui.runner.api.carrying import HostStep, RunCode
from disttui.runner.api.preparing import Planned, Prepared
from disttui.runner.api.starting import Launched, start
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import HostError, InputError
from disttui.runner.formatting import amount
from disttui.runner.hosts.link import Link
from disttui.runner.paths import here, typed
from disttui.runner.profile.library import EXAMPLES, libraries
from disttui.runner.text import clean, clean_lines
from disttui.tui.keys import bind
from disttui.tui.screen import DisttuiModal
from disttui.tui.widgets.bars import LEAVE, Hints, Key
from disttui.tui.widgets.choices import Cycle
from disttui.tui.wizard.draft import Draft, WizardState


class SaveScreen(DisttuiModal[Path | None]):
    """Offers the library's folders, the current folder, and any path; closes after the profile is saved.

    Args:
        save: Saves to a path and returns the error; empty if it succeeded.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("save.cancel", "escape", "dismiss", "cancel"),
        bind("save.other", "tab,down,up", "app.focus_next", "next", show=False),
        bind("save.save", "enter", "save", "save"),
    ]
    AUTO_FOCUS = "#path"
    DEFAULT_CSS = """
    SaveScreen Input { margin: 1 0 0 0; }
    SaveScreen Cycle { margin: 1 0 0 0; }
    SaveScreen #flaw { color: $state-failed; display: none; }
    SaveScreen #flaw.-on { display: block; }
    """

    def __init__(self, draft: Draft, save: Callable[[Path], Awaitable[str]]) -> None:
        super().__init__()
        self._save = save
        self._places = places(draft)

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box wide", can_focus=False):
            yield Static(Content.styled("Save the profile", "bold"))
            yield Cycle(list(self._places), id="place")
            yield Input(id="path", select_on_focus=False)
            yield Static(id="flaw")
            yield Hints(Key("enter", "enter", "save"), Key("tab", "tab", "choose a place"), LEAVE)

    def on_mount(self) -> None:
        self._fill(self.query_one(Cycle).value)

    @on(Cycle.Changed)
    def _placed(self, event: Cycle.Changed) -> None:
        self._fill(event.value)

    def _fill(self, place: str) -> None:
        path, line = str(self._places[place]), self.query_one(Input)
        line.value = path
        line.cursor_position = len(path)
        # Show the end of a path that is too long; this needs the width of the input.
        self.call_after_refresh(line.scroll_to, len(path), animate=False)

    @on(Input.Changed)
    def _typed(self) -> None:
        self._tell("")

    def _tell(self, flaw: str) -> None:
        self.query_one("#flaw", Static).update(Content(f"✗ {clean_lines(flaw)}" if flaw else ""))
        self.query_one("#flaw").set_class(bool(flaw), "-on")

    @on(Input.Submitted)
    @work(group="save", exclusive=True)
    async def action_save(self) -> None:
        """Save to the path, or show the error below it."""
        text = self.query_one(Input).value.strip()
        try:
            path = typed(text)
        except InputError as error:
            self._tell(error.sentence)
            return
        flaw = await self._save(path) if text else "enter the path of a file"
        if flaw:
            self._tell(flaw.removeprefix(f"{path}: "))  # the path is in the input above
        else:
            self.dismiss(path)


def places(draft: Draft) -> Mapping[str, Path]:
    """Name of a place → path for saving the profile, the most likely first."""
    file = f"{clean(str(draft.data.get('name') or 'run'))}.yaml".replace("/", "-")
    try:
        known = {library.name: library.folder for library in libraries()}
    except InputError:  # home reports it
        known = {}
    shipped = known.pop(EXAMPLES, None)
    found: dict[str, Path] = {}
    if draft.path and draft.path.parent != shipped:
        found["the same file"] = draft.path
    for name, folder in (*known.items(), ("this folder", here())):
        # Not `inside`: a user who links a profile to another place wants it saved there.
        found["my library" if name == "own" else name] = folder / file  # type: ignore[unsafe-path]
    return found


_NAMES = 6
"""Maximum number of hosts that are named."""


class Starting(VerticalScroll, can_focus=False):
    """The progress of an immediate start, with buttons to show the checks or to cancel."""

    class ChecksWanted(Message):
        """The user wants to see the checks."""

    class Left(Message):
        """The user does not want to start the run."""

    def __init__(self) -> None:
        super().__init__(classes="box")

    def compose(self) -> ComposeResult:
        """Yield the name, the state and the buttons."""
        yield Static(id="starting-what")
        yield Static(id="starting-state", classes="quiet")
        with Horizontal(classes="answers"):
            for name, word, key in (("starting-checks", "checks", "enter"), ("starting-leave", "cancel", "esc")):
                yield Button(Content.assemble(word, (f" {key}", "$muted")), id=name, compact=True)

    def show(self, view: WizardState, launching: str) -> None:
        """Show the hosts that have not answered, or the progress of the launch."""
        self.query_one("#starting-what", Static).update(Content.styled(f"Starting {clean(view.draft.title)}", "bold"))
        lines = [clean(launching)] if launching else self._lines(view)
        words = Content.styled("\n".join(f"◌ {line}" for line in lines), "$state-waiting")
        self.query_one("#starting-state", Static).update(words)
        for button in self.query(Button):
            button.disabled = bool(launching)

    def _lines(self, view: WizardState) -> Iterator[str]:
        waiting: dict[str, list[str]] = {}
        for state in view.of_hosts():
            if state.pending:
                waiting.setdefault(state.state, []).append(clean(state.name))
        for word, names in waiting.items():
            more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
            yield f"{word} {', '.join(names[:_NAMES])}{more}"
        if not waiting:
            yield f"checking {amount(len(view.draft.hosts), 'host')}"

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.post_message(self.ChecksWanted() if event.button.id == "starting-checks" else self.Left())


def start_run(
    viewer: Viewer, draft: Draft, planned: Planned, links: Mapping[str, Link], tell: Callable[[str], object],
    sends: Callable[[RunCode], object],
) -> str:  # fmt: skip
    """Start the supervisors of all hosts and return the run's id. Raises DisttuiError; then nothing runs.

    Args:
        tell: Called with the progress of preparing the hosts, as text.
        sends: Called with the code before it is sent.
    """
    # For a Slurm job the draft has the login node, and the plan one host per node.
    for name, host in zip(draft.hosts, planned.profile.hosts, strict=planned.plan.batch is None):
        if name not in links:
            raise HostError(host.name, "the connection is lost", "Retry with r in step 2.")
    prepared = Prepared(planned, tuple(links[name] for name in draft.hosts))
    before = draft.again
    source = str(draft.path) if draft.path else before.source if before else None
    resume_from = before.resume_from if before else None
    steps = start(
        viewer, prepared, source=source, resume_from=resume_from, ssh_config=draft.ssh_config, command=sys.argv,
        code=before.code if before else None,
    )  # fmt: skip
    for step in steps:
        if isinstance(step, Launched):
            return step.run.run
        if isinstance(step, HostStep) and step.words:
            tell(f"{planned.profile.hosts[step.node].name}: {step.words}")
        if isinstance(step, RunCode):
            sends(step)
    raise AssertionError("the start yields a run or raises")
