"""The dialog shown while the hosts of a profile are checked for an immediate start."""

from __future__ import annotations

from collections.abc import Iterator

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Static

from runner.text import clean
from tui.wizard.draft import WizardState
from tui.wizard.step import count

_NAMES = 6
"""The most hosts that are named."""


class Starting(VerticalScroll, can_focus=False):
    """The hosts that have not answered yet, and two ways out: to the checks, and back."""

    class ChecksWanted(Message):
        """The user wants to see the checks."""

    class Left(Message):
        """The user does not want to start the run."""

    def __init__(self) -> None:
        super().__init__(classes="box")

    def compose(self) -> ComposeResult:
        """Yield name, state and buttons."""
        yield Static(id="starting-what")
        yield Static(id="starting-state", classes="quiet")
        with Horizontal(classes="answers"):
            for name, word, key in (("starting-checks", "checks", "enter"), ("starting-leave", "cancel", "esc")):
                yield Button(Content.assemble(word, (f" {key}", "$muted")), id=name, compact=True)

    def show(self, view: WizardState, launching: bool) -> None:
        """Show the state of the checks."""
        name = clean(str(view.draft.data.get("name") or (view.draft.path.stem if view.draft.path else "")))
        self.query_one("#starting-what", Static).update(Content.styled(f"Starting {name}", "bold"))
        lines = ["being started on its hosts"] if launching else self._lines(view)
        words = Content.styled("\n".join(f"◌ {line}" for line in lines), "$state-waiting")
        self.query_one("#starting-state", Static).update(words)
        for button in self.query(Button):
            button.disabled = launching

    def _lines(self, view: WizardState) -> Iterator[str]:
        waiting: dict[str, list[str]] = {}
        for state in view.of_hosts():
            if state.pending:
                waiting.setdefault(state.state, []).append(clean(state.name))
        for word, names in waiting.items():
            more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
            yield f"{word} {', '.join(names[:_NAMES])}{more}"
        if not waiting:
            yield f"checking {count(len(view.draft.hosts), 'host')}"

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Post the message of the pressed button."""
        event.stop()
        self.post_message(self.ChecksWanted() if event.button.id == "starting-checks" else self.Left())
