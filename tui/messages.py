"""Messages that cross from a thread to a screen, each one immutable fact."""

from __future__ import annotations

from textual.message import Message

from tui.shelf import Shelf


class ShelfRead(Message):
    """Runs, profiles and hosts were read anew."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self.shelf = shelf

    def can_replace(self, message: Message) -> bool:
        """A newer one makes an older one superfluous."""
        return isinstance(message, ShelfRead)
