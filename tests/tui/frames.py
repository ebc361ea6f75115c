"""What is painted, frame after frame: a screen that is there for one frame alone is a flash."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.console import RenderableType
from textual._compositor import LayoutUpdate
from textual.app import App
from textual.screen import Screen

from disttui.tui.app import DisttuiApp


class Frame(NamedTuple):
    """One painting."""

    screen: str
    """The class of the screen."""
    text: str


class Filmed(DisttuiApp):
    """The app, which keeps every frame that differs from the one before."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.frames: list[Frame] = []

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        super()._display(screen, renderable)
        if renderable is not None and screen is self.screen and not self._batch_count:
            frame = Frame(type(screen).__name__, painted(self))
            if frame not in self.frames[-1:]:
                self.frames.append(frame)

    def screens(self) -> list[str]:
        """The screens that were painted, one after another."""
        names = [frame.screen for frame in self.frames]
        return [name for at, name in enumerate(names) if names[at - 1 : at] != [name]]


def painted(app: App[Any]) -> str:
    """The characters on the terminal: of the screen, and of those that it lets through."""
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    assert isinstance(update, LayoutUpdate)
    return "\n".join("".join(strip.text for strip in strips).rstrip() for strips in update.strips) + "\n"
