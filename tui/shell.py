"""The part of the app that a screen may use: from the app's own thread, unless a method says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from textual.binding import Binding
from textual.dom import DOMNode
from textual.notifications import SeverityLevel

if TYPE_CHECKING:
    from runner.api.viewer import Viewer
    from runner.user.config import Settings
    from tui.inventory import Shelf
    from tui.router import Router


class Shell(Protocol):
    """The app as its screens and their helpers use it; `screen.disttui` is one."""

    environ: Mapping[str, str]
    """The environment of the process."""
    settings: Settings
    read_only: bool
    """Whether --read-only is set. `DisttuiScreen` then refuses actions of the group `tui.keys.CHANGE` by itself."""
    ssh_config: str | None
    shelf: Shelf
    """Runs, profiles and hosts as last read."""
    at_end: list[Callable[[], None]]
    """Called after the app has ended and the terminal is restored."""
    router: Router
    """Opens screens."""

    @property
    def typed_at(self) -> float:
        """When the key that is now being handled was typed (monotonic clock, s)."""

    async def ask(self, question: str, consequence: str, yes: str = "yes") -> bool:
        """Ask before an action that cannot be undone; call it in a worker."""

    def viewer(self) -> Viewer:
        """The viewer that all screens share; call it in a thread worker."""

    def new_viewer(self) -> Viewer:
        """A viewer to be closed by the caller; call it in a thread worker."""

    def copy(self, text: str) -> Any:
        """Copy to the clipboard by the best way available here, and say which."""

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a toast; its text is cleaned, and never parsed as markup. Any thread may call it."""

    def send(self, sequence: str) -> None:
        """Write a control sequence to the terminal, outside of a frame."""

    def effective_bindings(self, node: DOMNode) -> Iterator[Binding]:
        """Yield a node's bindings with the keys of the user's config."""

    async def action_back(self) -> None:
        """Leave the screen: to the one before it, or to the shell if a command opened this screen alone."""
