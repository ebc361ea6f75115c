"""Messages that cross from a thread to a screen, each one immutable fact."""

from __future__ import annotations

from collections.abc import Mapping

from textual.message import Message

from tui.inventory import Shelf


class HostsAsked(Message):
    """The hosts of the newest runs were asked how these are."""

    def __init__(self, silent: Mapping[str, str]) -> None:
        super().__init__()
        self.silent = silent
        """Run → why nothing is known anew."""


class ShelfRead(Message):
    """Runs, profiles and hosts were read anew."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self.shelf = shelf

    def can_replace(self, message: Message) -> bool:
        """A newer one makes an older one superfluous."""
        return isinstance(message, ShelfRead)
