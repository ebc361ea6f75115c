"""Keys and what they do, in one line of a dialog."""

from __future__ import annotations

from typing import NamedTuple

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.widget import Widget


class Key(NamedTuple):
    """A key of the line."""

    key: str
    """Textual's name of it."""
    shown: str
    does: str


LEAVE = Key("escape", "esc", "leave it")


class Hints(Widget):
    """`enter save   esc leave it`; a click on a hint presses its key.

    Args:
        keys: The keys.
        after: Text after the keys.
    """

    DEFAULT_CSS = "Hints { height: auto; color: $muted; pointer: pointer; }"
    ALLOW_SELECT = False
    GAP = 3

    def __init__(self, *keys: Key, after: str = "", classes: str = "quiet") -> None:
        super().__init__(classes=classes)
        self._keys = keys
        self._after = after

    def show(self, *keys: Key) -> None:
        """Replace the keys."""
        if keys != self._keys:
            self._keys = keys
            self.refresh(layout=True)

    def _rows(self, width: int) -> list[list[tuple[int, Key]]]:
        """The keys of each row with their columns; keys that do not fit go to the next row."""
        rows: list[list[tuple[int, Key]]] = [[]]
        at = 0
        for key in self._keys:
            cells = cell_len(key.shown) + 1 + cell_len(key.does)
            if rows[-1] and at + cells > width:
                rows.append([])
                at = 0
            rows[-1].append((at, key))
            at += cells + self.GAP
        return rows

    def render(self) -> Content:
        """Draw the keys and the text."""
        width = self.content_size.width or 80
        lines = [
            Content(" " * self.GAP).join(
                Content.assemble((key.shown, "bold $accent"), f" {key.does}") for _, key in row
            )
            for row in self._rows(width)
        ]
        hints = Content("\n").join(lines)
        fits = lines[-1].cell_length + self.GAP + cell_len(self._after) <= width
        return Content.assemble(hints, " " * self.GAP if fits else "\n", self._after) if self._after else hints

    def on_click(self, event: events.Click) -> None:
        """Press the key under the pointer."""
        offset = event.get_content_offset(self)
        rows = self._rows(self.content_size.width or 80)
        if offset is None or not 0 <= offset.y < len(rows):
            return
        for start, key in rows[offset.y]:
            if start <= offset.x < start + cell_len(key.shown) + 1 + cell_len(key.does):
                self.app.simulate_key(key.key)
