"""What a screen may call of the app, all of it on the app's own thread unless it says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from textual.binding import Binding
from textual.dom import DOMNode
from textual.notifications import SeverityLevel

if TYPE_CHECKING:
    from runner.api.viewer import Viewer
    from tui.config import Settings
    from tui.inventory import Shelf
    from tui.router import Router


class Shell(Protocol):
    """The app as its screens and their helpers see it; `screen.disttui` is one."""

    environ: Mapping[str, str]
    """The environment of the process."""
    settings: Settings
    read_only: bool
    """Actions that are bound in the group `tui.keys.CHANGE` are refused by themselves then."""
    ssh_config: str | None
    shelf: Shelf
    """Runs, profiles and hosts as last read."""
    at_end: list[Callable[[], None]]
    """What is to be done when the app has been left and the terminal is as before."""
    router: Router
    """Opens screens."""

    @property
    def typed_at(self) -> float:
        """When the key was typed that is being obeyed (monotonic clock, s)."""

    async def ask(self, question: str, consequence: str, yes: str = "yes") -> bool:
        """Ask before something that cannot be undone; call it in a worker."""

    def viewer(self) -> Viewer:
        """The viewer that all screens share; call it in a thread worker."""

    def new_viewer(self) -> Viewer:
        """A viewer to be closed by the caller; call it in a thread worker."""

    def copy(self, text: str) -> Any:
        """Copy to the clipboard by the best way there is, and say which."""

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a toast; its words are cleaned, and never taken as markup. Any thread may call it."""

    def send(self, sequence: str) -> None:
        """Send the terminal a control sequence that is no part of a frame."""

    def effective_bindings(self, node: DOMNode) -> Iterator[Binding]:
        """Yield a node's bindings with the keys of the user's config."""

    async def action_back(self) -> None:
        """Leave the screen: to the one before, or to the shell where the command was for this one."""
