"""The notice in place of a screen that does not fit."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget


class TooSmall(Widget):
    """Shows the size that is needed and the present size; hidden while the screen fits."""

    DEFAULT_CSS = """
    TooSmall { display: none; width: 100%; height: 100%; content-align: center middle; text-align: center; }
    """

    def __init__(self, needs: tuple[int, int]) -> None:
        super().__init__()
        self._needs = needs

    def render(self) -> Content:
        """Draw both sizes."""
        columns, rows = self._needs
        width, height = self.screen.size
        return Content.assemble(
            ("terminal too small", "bold"), f"\nneeds {columns}×{rows}\n", (f"has {width}×{height}", "$state-slow")
        )
