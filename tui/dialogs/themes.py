"""The list of themes: the app uses each while the cursor is on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual.widgets import OptionList

from tui.dialogs.pick import PickScreen
from tui.theme import THEMES


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
        """Preview the highlighted theme."""
        self._preview(self.key_at(event.option_index))
