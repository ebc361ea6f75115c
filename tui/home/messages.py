"""Messages that cross from a thread to a screen, each one immutable fact."""

from __future__ import annotations

from collections.abc import Mapping

from textual.message import Message

from tui.inventory import Shelf


class HostsAsked(Message):
    """The hosts of the newest runs have been asked for their state."""

    def __init__(self, silent: Mapping[str, str]) -> None:
        super().__init__()
        self.silent = silent
        """Run → why its hosts gave no new state."""


class ShelfRead(Message):
    """Runs, profiles and hosts were read again."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self.shelf = shelf

    def can_replace(self, message: Message) -> bool:
        """Replace an older one that has not been handled yet."""
        return isinstance(message, ShelfRead)
