"""The placeholder of a pane without content."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


class Empty(Static):
    """A line or two that say what is missing, and which key adds it.

    Args:
        what: What is missing.
        keys: (key, what it does) pairs.
    """

    DEFAULT_CSS = """
    Empty { width: 1fr; height: 1fr; content-align: center middle; color: $muted; }
    """

    def __init__(self, what: str, *keys: tuple[str, str], id: str | None = None) -> None:
        parts: list[Content | str | tuple[str, str]] = [what]
        for key, does in keys:
            parts += ["\n", (key, "bold $accent"), f"  {does}"]
        super().__init__(Content.assemble(*parts), id=id)
