"""Dialogs over the current screen: a confirmation, a choice from a list, and questions of connecting threads."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from disttui.runner.ids import short
from disttui.runner.text import clean, clean_lines
from disttui.tui.dialogs.question import Question, QuestionGate
from disttui.tui.keys import bind
from disttui.tui.screen import DisttuiModal
from disttui.tui.theme import THEMES
from disttui.tui.widgets.bars import LEAVE, Hints, Key

if TYPE_CHECKING:
    from disttui.runner.api.questions import Doubt


class SecretScreen(Question[str]):
    """Asks for an answer that is not shown; an empty answer cancels."""

    UNREQUESTED = True
    DEFAULT_CSS = """
    SecretScreen .said { height: auto; max-height: 50vh; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [bind("secret.give_up", "escape", "dismiss('')", "cancel")]

    def __init__(self, host: str, question: str, said: str = "") -> None:
        super().__init__()
        self._said = clean_lines(said, guesses=False)
        self._host = clean(host)
        self._question = clean(question)

    def compose(self) -> ComposeResult:
        """Yield the host's message, the question and the input."""
        with VerticalScroll(classes="box", can_focus=False):
            if self._said:
                yield Static(Content.styled(f"{self._host} says:", "bold"))
                with VerticalScroll(can_focus=False, classes="said"):
                    yield Static(Content(self._said), classes="quiet")
            yield Static(Content.assemble((self._host, "bold"), "  ", self._question))
            yield Input(password=True, classes="answer")
            yield Hints(Key("enter", "enter", "send"), Key("escape", "esc", "cancel"), after="kept only in memory")

    def on_mount(self) -> None:
        """Scroll to the end of the host's message: its question."""
        for said in self.query(".said"):
            self.call_after_refresh(said.scroll_end, animate=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


_NAMED = re.compile(r"^(?:[+-] )?\S+:(?= )", re.MULTILINE)
"""The subject of a line, highlighted in a consequence of several lines, which would read as one paragraph otherwise."""


class ConfirmScreen(Question[bool]):
    """Asks whether to do something and describes the consequence; the safe answer has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("confirm.yes", "y", "dismiss(True)", "confirm"),
        bind("confirm.no", "n,escape,q", "dismiss(False)", "cancel"),
        bind("confirm.other", "left,right,h,l,tab", "other", "the other answer", show=False, priority=True),
        bind("confirm.down", "down,j", "scroll(1)", "down", show=False),
        bind("confirm.up", "up,k", "scroll(-1)", "up", show=False),
    ]
    AUTO_FOCUS = "#no"
    KEYS: ClassVar[tuple[str, str]] = ("y", "n")
    """The keys that the buttons show."""

    def __init__(self, question: str, consequence: str, yes: str, *, unrequested: bool = False) -> None:
        super().__init__(unrequested=unrequested)
        # The user decides by this text, so what only looks like a secret is not masked.
        self._question = clean(question, guesses=False)
        self._consequence = clean_lines(consequence, guesses=False)
        self._yes = clean(yes)

    def compose(self) -> ComposeResult:
        """Yield the question, the consequence and two answers."""
        with VerticalScroll(classes="box", can_focus=False):
            yield Static(Content.styled(self._question, "bold"))
            yield Static(Content(self._consequence).highlight_regex(_NAMED, style="$foreground"), classes="quiet")
            with Horizontal(classes="answers"):
                for name, word, key in zip(("yes", "no"), (self._yes, "cancel"), self.KEYS, strict=True):
                    yield Button(Content.assemble(word, (f" {key}", "$muted")), id=name, compact=True)

    def action_scroll(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_other(self) -> None:
        self.focus_next()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if self.accepts(event):
            self.dismiss(event.button.id == "yes")


class TrustScreen(ConfirmScreen, inherit_bindings=False):
    """Asks whether to trust a host, a key or a profile. Printable keys do not answer: the user may be typing."""

    UNREQUESTED = True
    KEYS = ("^t", "esc")
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("trust.yes", "ctrl+t", "dismiss(True)", "trust"),
        bind("trust.no", "escape", "dismiss(False)", "do not trust"),
        bind("trust.other", "left,right,tab", "other", "the other answer", show=False, priority=True),
        bind("trust.down", "down", "scroll(1)", "down", show=False),
        bind("trust.up", "up", "scroll(-1)", "up", show=False),
    ]


Answer = TypeVar("Answer")
_TOLD = 30.0
"""Seconds for which a host's message is shown."""


class AppPrompts:
    """`disttui.runner.api.questions.Questions` of the app, called from connecting threads; asks one at a time.

    A question waits while the user types into an input or answers another question; the answer to one that is still
    open when the app ends is False or None.
    """

    def __init__(self, app: App[None], questions: QuestionGate) -> None:
        self._app = app
        self._questions = questions
        self._turn = threading.Lock()

    def secret(self, host: str, question: str, said: str = "") -> str | None:
        """Ask for a password, a passphrase or another answer, which is not shown; None if the user cancels."""
        return self._ask(host, SecretScreen(host, question, said)) or None

    def tell(self, host: str, said: str) -> None:
        """Show a host's message as a toast."""
        if self._app.is_running:
            self._app.call_from_thread(self._app.notify, said, title=f"{host} says", timeout=_TOLD)

    def share_password(self, host: str, others: int) -> bool:
        """Ask whether to try a password on other hosts."""
        which = "host" if others == 1 else f"{others} hosts"
        words = f"{host} accepted it. It is kept only in memory."
        screen = TrustScreen(f"Try this password on the other {which}?", words, "use it")
        return self._ask(host, screen) is True

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        """Ask whether to trust an unknown host key."""
        own = "Compare it with the output on the host:\ncat /etc/ssh/ssh_host_*.pub | ssh-keygen -lf -"
        words = f"{key_type}\n{fingerprint}\n{own}"
        answer = self._ask(host, TrustScreen(f"{host} is unknown. Trust its key and save it?", words, "trust"))
        return answer is True

    def trust_profile(self, doubt: Doubt) -> bool | None:
        """Ask whether a profile may be used; screens show its contents first."""
        return self._ask(str(doubt), TrustScreen("Use this profile?", str(doubt), "use"))

    def trust_hosts(self, asked: str, run: str, others: Sequence[str]) -> bool | None:
        """Ask whether to log in to hosts that another host reports."""
        words = f"It says that {short(run)} also runs on {', '.join(others)}"
        return self._ask(asked, TrustScreen("Log in to them?", words, "log in"))

    def _ask(self, host: str, screen: Question[Answer]) -> Answer | None:
        answer: Future[Answer | None] = Future()
        with self._turn:
            put = False
            while not answer.done() and self._app.is_running:
                put = put or self._app.call_from_thread(self._questions.put, host, screen, answer.set_result)
                wait([answer], 0.2)
        return answer.result() if answer.done() else None


class PickScreen(DisttuiModal[str | None]):
    """Offers (key, words) pairs; returns the chosen key, or None if cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("pick.close", "escape,q", "dismiss", "close", "cancel"),
        bind("pick.down", "j", "move(1)", "down", show=False),
        bind("pick.up", "k", "move(-1)", "up", show=False),
    ]
    DEFAULT_CSS = """
    PickScreen OptionList {
        height: auto; max-height: 70vh; margin: 1 0 0 0; padding: 0; border: none; background: $panel;
    }
    PickScreen OptionList:focus { background-tint: transparent; }
    PickScreen.-short OptionList { max-height: 60vh; }
    """

    def __init__(self, title: str, offered: Sequence[tuple[str, str]], chosen: str | None) -> None:
        super().__init__()
        self._title = clean(title)
        self._offered = [(key, clean(words)) for key, words in offered]
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Content.styled(self._title, "bold"))
            yield OptionList(*(Option(Content(words)) for _, words in self._offered), compact=True)
            yield Hints(Key("enter", "enter", "choose"), LEAVE)

    def on_mount(self) -> None:
        keys = [key for key, _ in self._offered]
        self.query_one(OptionList).highlighted = keys.index(self._chosen) if self._chosen in keys else 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._offered[event.option_index][0])

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        options.action_cursor_down() if by > 0 else options.action_cursor_up()


class ThemeScreen(PickScreen):
    """Offers the themes, disttui's own first.

    Args:
        names: The available themes.
        now: The theme in use.
        preview: Called with the theme under the cursor.
    """

    def __init__(self, names: Iterable[str], now: str, preview: Callable[[str], None]) -> None:
        ours = [theme.name for theme in THEMES]
        ordered = [*ours, *sorted(name for name in names if name not in ours)]
        super().__init__("Theme", [(name, name) for name in ordered], now)
        self._preview = preview

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self._preview(self._offered[event.option_index][0])
