"""A short list to choose from, over a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from runner.text import clean
from tui.keys import bind
from tui.screen import DisttuiModal
from tui.widgets.hints import LEAVE, Hints, Key


class PickScreen(DisttuiModal[str | None]):
    """Offers (key, words) pairs and returns the chosen key, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("pick.close", "escape,q", "close", "close", "leave it as it is"),
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
        """Title and list."""
        with Vertical(classes="box"):
            yield Static(Content.styled(self._title, "bold"))
            yield OptionList(*(Option(Content(words)) for _, words in self._offered), compact=True)
            yield Hints(Key("enter", "enter", "choose"), LEAVE)

    def on_mount(self) -> None:
        """Highlight the current choice."""
        keys = [key for key, _ in self._offered]
        self.query_one(OptionList).highlighted = keys.index(self._chosen) if self._chosen in keys else 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the selected key."""
        self.dismiss(self.key_at(event.option_index))

    def key_at(self, index: int) -> str:
        """The key of the option at an index."""
        return self._offered[index][0]

    def action_move(self, by: int) -> None:
        """Move the highlight."""
        options = self.query_one(OptionList)
        options.action_cursor_down() if by > 0 else options.action_cursor_up()

    def action_close(self) -> None:
        """Choose nothing."""
        self.dismiss(None)
