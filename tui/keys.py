"""Keys: every binding has an id by which the user's config can remap it, a short label, and its meaning in words."""

from __future__ import annotations

from textual.binding import Binding

MOVE = Binding.Group("Move")
OPEN = Binding.Group("Open")
VIEW = Binding.Group("View")
CHANGE = Binding.Group("Change")
"""Actions that change something on hosts or in files; --read-only refuses them."""
APP = Binding.Group("Everywhere")

GROUPS = (OPEN, CHANGE, VIEW, MOVE, APP)
"""The sections of the help screen, in their order."""


def bind(
    id: str,
    keys: str,
    action: str,
    label: str,
    words: str = "",
    *,
    group: Binding.Group = VIEW,
    show: bool = True,
    priority: bool = False,
) -> Binding:
    """Make a binding.

    Args:
        id: `<screen or widget>.<action>`, unique in the app; `keys:` in the config refers to it.
        keys: Textual's key names, separated by commas. The first is shown.
        action: The action it runs.
        label: One or two words for the footer.
        words: What it does, for the help screen; defaults to `label`.
        group: Its section of the help screen.
        show: Whether the footer shows it.
        priority: Whether it takes the key before the focused widget does.
    """
    return Binding(keys, action, label, show=show, priority=priority, tooltip=words or label, id=id, group=group)


MOVES = (
    bind("move.down", "j,down", "cursor_down", "down", "one row down", group=MOVE, show=False),
    bind("move.up", "k,up", "cursor_up", "up", "one row up", group=MOVE, show=False),
    bind("move.page_down", "ctrl+d,pagedown", "page_down", "page down", group=MOVE, show=False),
    bind("move.page_up", "ctrl+u,pageup", "page_up", "page up", group=MOVE, show=False),
    bind("move.first", "g,home", "first", "first", "to the first row", group=MOVE, show=False),
    bind("move.last", "G,end", "last", "last", "to the last row", group=MOVE, show=False),
)
"""Keys that move through rows: a widget that uses these implements the six actions."""

PANE_KEYS = (
    bind("dash.next", "tab", "pane(1)", "pane", "to the next pane", group=MOVE),
    bind("dash.zoom", "z", "zoom", "zoom", "this pane alone, or all of them", group=VIEW),
    bind("dash.find", "slash", "log('find')", "find", "find in the log", group=VIEW),
)
"""Bindings that a screen of panes adds after its own: the footer shows the first that fit."""
